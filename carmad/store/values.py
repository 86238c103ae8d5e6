"""What the store returns, besides the core's own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.core.gpus.gpu import Drain
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.history import Past, Submission, past
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import Outcome
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Account


@dataclass(frozen=True, slots=True)
class Restored:
    """All that the core needs to continue where it was."""

    jobs: tuple[Job, ...]  # not ended, in id order
    ended: tuple[Outcome, ...]  # the last few thousand, the latest at the end
    drains: tuple[Drain, ...]
    next_id: JobId
    accounts: tuple[Account, ...] = ()
    limits: tuple[Limit, ...] = ()
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What `carmad.core.jobs.history.History` is built from, both in order of time."""

    runs: tuple[Past, ...]  # the latest ones
    submissions: tuple[Submission, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    at: float
    job: JobId
    before: JobState | None  # None: the job is new
    after: JobState
    attempt: int


@dataclass(frozen=True, slots=True)
class Named:
    """A job as people know it."""

    label: str
    user: str
    uid: int
    name: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the owner of a job asked to be told of."""

    id: int
    job: JobId
    at: float
    what: str  # one of `options.TOLD_OF`
    words: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A duration over many jobs, in seconds; zeros when there are none."""

    mean_s: float = 0.0
    p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over ended jobs."""

    jobs: tuple[tuple[JobState, int], ...]  # how many ended in each state
    gpu_hours: float
    energy_j: float
    wait: Spread  # from submission to the first start
    run: Spread  # of the last attempt


@dataclass(frozen=True, slots=True)
class External:
    """A process outside of the queue, on one GPU. Times are Unix seconds."""

    gpu: GpuId
    pid: int
    started_at: float
    user: str
    command: str
    seen_from: float
    seen_to: float
    peak_mib: int | None  # None: not known


@dataclass(frozen=True, slots=True)
class ExternalTotals:
    """Of a user's external processes; one on two GPUs counts twice."""

    user: str
    processes: int
    gpu_hours: float
    peak_mib: int | None


@dataclass(frozen=True, slots=True)
class Statistics:
    overall: Totals
    users: tuple[tuple[str, Totals], ...]  # by name
    months: tuple[tuple[str, Totals], ...] = ()  # in which jobs ended, as 2026-11, in local time


# -- the table of ended jobs: models are trained on it, and `carma history --table` writes it

Cell = str | float | int | bool | None


def table_row(job: Job) -> Mapping[str, Cell]:
    """One ended job. Times are in Unix s, durations in s, memory in MiB per GPU; None: unknown.

    `duration_s` is how long it held its GPUs, in attempts that were not lost; None: it never
    ran. Each indicator of its profile, which may be from an earlier run, has the columns NAME, the
    mean, and NAME_variance; fractions are 0–1. Which indicators there are depends on the GPUs.
    """
    spec, run = job.spec, past(job)
    cells: dict[str, Cell] = {
        "job": job.id,
        "user": spec.user,
        "group": job.group,  # the same for runs of the same job
        "name": spec.name,
        "gpus": spec.gpus,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at if run else None,  # the last attempt
        "ended_at": job.ended_at,
        "duration_s": run.duration_s if run else None,
        "state": job.state.value,
        "cause": job.exit.cause.value if job.exit else None,
        "attempts": job.attempt,
        "batch_size": spec.batch_size,
        "amp": spec.amp,
        "peak_mib": job.usage.peak_mib or None,
        "estimate_mib": job.estimate.mib if job.estimate else None,
        "predicted_s": job.prediction.seconds if job.prediction else None,
        "profiled_s": job.profile.seconds if job.profile else None,
        "profile_of": job.profile.of if job.profile else None,  # the earlier run measured, if any
        "profile_peak_mib": job.profile.peak_mib if job.profile else None,
    }
    for indicator in job.profile.indicators if job.profile else ():
        cells[indicator.name] = indicator.mean
        cells[f"{indicator.name}_variance"] = indicator.variance
    return cells
