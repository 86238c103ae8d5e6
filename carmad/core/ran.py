"""Jobs with only what receipts and reports need of them: a month has 50,000."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.core.attempt import Cause, GpuId, JobId, Mode
from carmad.core.findings import Company, Usage
from carmad.core.types import ArrayTask, Job, JobState


@dataclass(frozen=True, slots=True)
class End:
    cause: Cause


@dataclass(frozen=True, slots=True)
class Stay:
    """One attempt on its GPUs."""

    gpus: tuple[GpuId, ...]
    mode: Mode | None = None
    started_at: float | None = None
    ended_at: float | None = None  # None: it is there now
    shared: bool = False  # somebody else was on one of its GPUs, outside of the queue perhaps
    exit: End | None = None


@dataclass(frozen=True, slots=True)
class Whose:
    user: str
    uid: int
    name: str
    array: ArrayTask | None = None
    begin_at: float | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """The estimate of its memory."""

    mib: int
    source: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A job. Its fields are those of `Job`, so that it can be read from the same JSON."""

    id: JobId
    spec: Whose
    state: JobState
    submitted_at: float
    attempts: tuple[Stay, ...] = ()
    group: str = ""
    estimate: Said | None = None
    usage: Usage = Usage()  # noqa: RUF009 - it is frozen
    company: tuple[Company, ...] = ()
    alone_s: float | None = None  # how long it would have run alone, where that is known exactly

    @property
    def first_started_at(self) -> float | None:
        times = (each.started_at for each in self.attempts)
        return next((at for at in times if at is not None), None)


def ran(job: Job, usage: Usage | None = None) -> Ran:
    """`usage`: newer than the job's own."""
    spec, need = job.spec, job.estimate
    return Ran(
        id=job.id,
        spec=Whose(spec.user, spec.uid, spec.name, spec.array, spec.begin_at),
        state=job.state,
        submitted_at=job.submitted_at,
        attempts=tuple(
            Stay(
                each.gpus,
                each.mode,
                each.started_at,
                each.ended_at,
                each.shared,
                End(each.exit.cause) if each.exit else None,
            )
            for each in job.attempts
        ),
        group=job.group,
        estimate=Said(need.mib, need.source) if need else None,
        usage=usage or job.usage,
        company=job.company,
    )
