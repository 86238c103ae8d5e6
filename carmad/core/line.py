"""The queue: its order, and what keeps a job from being shown to the policy at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from carmad.config import Host
from carmad.core.decision import Reason
from carmad.core.host import Room, asks, counted
from carmad.core.quota import Quotas
from carmad.core.share import Standing
from carmad.core.types import Job, JobId, JobSpec, JobState

FEW = 8  # dependencies of a job that are named


K = TypeVar("K")
Place = tuple[bool, bool, int, float, int, float, JobId]


def place_in_line(job: Job, order: float, standing: Standing = (True, 0)) -> Place:
    """The recovery queue first (CARMA paper, 3.5), then urgent jobs, then by niceness, by the
    policy's `order`, by its user's rank, and by arrival."""
    usual, rank = standing
    return (job.retry is None, usual, job.spec.nice, order, rank, job.submitted_at, job.id)


@dataclass(frozen=True, slots=True)
class Held:
    """What running jobs hold: GPUs per user, tasks per array, CPUs and memory of the host."""

    gpus: Counter[str] = field(default_factory=Counter)
    tasks: Counter[JobId] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)  # by field of `JobSpec`
    of_host: dict[JobId, JobSpec] = field(default_factory=dict)  # the jobs that have a part of it

    def add(self, job: Job) -> None:
        self._count(job, 1)
        if asks(job.spec):
            self.of_host[job.id] = job.spec

    def remove(self, job: Job) -> None:
        self._count(job, -1)
        self.of_host.pop(job.id, None)

    def copy(self) -> Held:
        return Held(self.gpus.copy(), self.tasks.copy(), self.host.copy(), self.of_host.copy())

    def _count(self, job: Job, sign: int) -> None:
        _add(self.gpus, job.spec.user, sign * len(job.gpus))
        counted(self.host, job.spec, sign)
        if job.spec.array:
            _add(self.tasks, job.spec.array.array, sign)


def _add(counts: Counter[K], key: K, number: int) -> None:
    counts[key] += number
    if not counts[key]:
        del counts[key]  # users and arrays come and go


def is_conditional(job: Job) -> bool:
    """Whether anything besides GPUs and quotas may keep it waiting, or it wants no GPU: rare."""
    spec = job.spec
    limited = spec.array is not None and spec.array.limit is not None
    waits = job.held or spec.begin_at is not None or bool(spec.after) or limited
    return waits or not spec.gpus or asks(spec)


def blockers(
    job: Job,
    now: float,
    live: Mapping[JobId, Job],
    held: Held,
    quotas: Quotas,
    unread: str,
    room: Room | None = None,
) -> Iterator[Reason]:
    """Why a queued job may not start yet, whatever the state of the GPUs: all there is. `unread`:
    why the GPUs cannot be read; `room`: what the host has left, None to leave that out.

    A dependency that is not live has been met: otherwise the step in which it ended would have
    cancelled this job.
    """
    spec = job.spec
    if job.barred:
        yield Reason("no_account", detail=job.barred)
    if job.held:
        yield Reason("held")
    if spec.begin_at is not None and now < spec.begin_at:
        yield Reason("begin", spec.begin_at, now, "s")
    if spec.after and (before := _named(a.job for a in spec.after if a.job in live)):
        yield Reason("dependency", detail=before)
    if spec.array and spec.array.limit is not None:
        active = held.tasks[spec.array.array]
        if active >= spec.array.limit:
            yield _array_limit(spec.array.limit, active)
    if spec.gpus and quotas.any and (refusal := quotas.refusal(spec.user, spec.gpus)):
        yield refusal
    if room and (lack := room.lack(job)):
        yield lack
    if unread and spec.gpus:
        yield Reason("gpus_unread", detail=unread)


def host_room(
    total: Host,
    held: Held,
    lines: Iterable[Iterable[Job]],
    ready: Callable[[Job], bool],
    standing: Callable[[Job], Standing],
) -> Room:
    """What the host has left. `lines`: of the jobs for GPUs, and of those for CPUs alone; `ready`:
    whether a job waits for nothing but GPUs and the host."""
    firsts = [job for line in lines for job in islice(filter(ready, line), 1)]
    # Policies have no say here: they do not know the jobs without GPUs.
    firsts.sort(key=lambda job: place_in_line(job, 0.0, standing(job)))
    return Room(total, held.host, held.of_host, firsts)


@lru_cache
def _array_limit(limit: int, active: int) -> Reason:
    """Shared by all of an array's tasks, of which there may be ten thousand."""
    return Reason("array_limit", limit, active, "tasks")


def _named(jobs: Iterable[JobId]) -> str:
    """The first few of them, as text: there may be a whole array."""
    names = [f"job {job}" for job in islice(jobs, FEW + 1)]
    return ", ".join(names if len(names) <= FEW else [*names[:FEW], "…"])


def never_satisfied(job: Job, ended: Mapping[JobId, JobState]) -> JobId | None:
    """A dependency of the job that ended the wrong way, if any."""
    for after in job.spec.after:
        state = ended.get(after.job)
        if state is not None and not after.kind.met_by(state):
            return after.job
    return None
