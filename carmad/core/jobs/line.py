"""The queue: its order, and what keeps a job from being shown to the policy at all.

Jobs may ask for a part of the host's CPUs and memory. The first job of each line, of those for GPUs
and of those for CPUs alone, keeps what it wants free until it starts: otherwise small jobs could
pass a large one for ever. A job that asks for nothing counts for nothing, and waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from typing import TypeVar

from carmad.config import Host
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import After, JobSpec, Owner
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Reason
from carmad.core.rules.quota import Quotas
from carmad.core.rules.share import HostPart, Standing, host_part
from carmad.readable import gib

FEW = 8  # dependencies of a job that are named
NAMED = 3  # jobs that a reason names: those that have most of the host
CPUS, MEMORY = "cpus", "host_memory_mib"  # fields of `JobSpec`


K = TypeVar("K")
Place = tuple[bool, bool, int, float, int, float, JobId]


def place_in_line(job: Job, order: float, standing: Standing = (True, 0)) -> Place:
    """The recovery queue first (CARMA paper, 3.5), then urgent jobs, then by niceness, by the
    policy's `order`, by its user's rank, and by arrival."""
    usual, rank = standing
    return (job.retry is None, usual, job.spec.nice, order, rank, job.submitted_at, job.id)


@dataclass(frozen=True, slots=True)
class Held:
    """What running jobs hold: GPUs per user, tasks per array, CPUs and memory of the host.
    Suspended ones keep all but the GPUs."""

    gpus: Counter[Owner] = field(default_factory=Counter)
    tasks: Counter[JobId] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)  # by field of `JobSpec`
    of_host: dict[JobId, JobSpec] = field(default_factory=dict)  # the jobs that have a part of it

    def give(self, job: Job) -> None:
        """The job has got GPUs."""
        _add(self.gpus, job.spec.owner, len(job.gpus))

    def take(self, job: Job) -> None:
        """It holds none any more."""
        _add(self.gpus, job.spec.owner, -len(job.gpus))

    def begin(self, job: Job) -> None:
        """An attempt of it has begun."""
        self._count(job, 1)
        if asks_for_host(job.spec):
            self.of_host[job.id] = job.spec

    def end(self, job: Job) -> None:
        """The attempt has ended."""
        self._count(job, -1)
        self.of_host.pop(job.id, None)

    def copy(self) -> Held:
        return Held(self.gpus.copy(), self.tasks.copy(), self.host.copy(), self.of_host.copy())

    def _count(self, job: Job, sign: int) -> None:
        for kind in (CPUS, MEMORY):
            self.host[kind] += sign * (getattr(job.spec, kind) or 0)
        if job.spec.array:
            _add(self.tasks, job.spec.array.array, sign)


def asks_for_host(spec: JobSpec) -> bool:
    return spec.cpus is not None or spec.host_memory_mib is not None


def _add(counts: Counter[K], key: K, number: int) -> None:
    counts[key] += number
    if not counts[key]:
        del counts[key]  # users and arrays come and go


def is_conditional(job: Job) -> bool:
    """Whether anything besides GPUs and quotas may keep it waiting, or it wants no GPU: rare."""
    spec = job.spec
    limited = spec.array is not None and spec.array.limit is not None
    waits = job.held or spec.begin_at is not None or bool(spec.after) or limited
    waits = waits or job.suspension is not None
    estimating = job.state is JobState.PENDING
    return waits or estimating or not spec.gpus or asks_for_host(spec)


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
        yield Reason("suspended") if job.suspension else Reason("held")
    if spec.begin_at is not None and now < spec.begin_at:
        yield Reason("begin", spec.begin_at, now, "s")
    if spec.after and (before := _name_few(a for a in spec.after if a.job in live)):
        yield Reason("dependency", detail=before)
    if its := job.suspension:
        if now < its.again_at:
            yield Reason("resume_failed", its.again_at, its.failures)
    elif spec.array and spec.array.limit is not None:
        active = held.tasks[spec.array.array]
        if active >= spec.array.limit:
            yield _array_limit(spec.array.limit, active)
    if spec.gpus and quotas.any and (refusal := quotas.refusal(spec.owner, spec.gpus)):
        yield refusal
    if room and not job.suspension and (lack := room.lack(job)):
        yield lack
    if unread and spec.gpus:
        yield Reason("gpus_unread", detail=unread)


class Room:
    """What the host has left, as of one moment. `used`: the sums over `holders`, by field of
    `JobSpec`; `firsts`: the first job of each line, in order."""

    def __init__(
        self,
        total: Host,
        used: Mapping[str, int],
        holders: Mapping[JobId, JobSpec],
        firsts: Iterable[Job] = (),
    ) -> None:
        self._total = {CPUS: total.cpus, MEMORY: total.memory_mib}
        self._used = used
        self._holders = holders
        self._firsts = list(firsts)
        self._lacks: dict[HostPart, Reason | None] = {}  # of jobs that are no first: they are alike

    def lack(self, job: Job) -> Reason | None:
        """What is missing for the job to start; None if nothing is."""
        if not asks_for_host(job.spec):
            return None
        for place, first in enumerate(self._firsts):
            if job.id in first.ids:
                return self._lack(job.spec, self._firsts[:place])
        wanted = host_part(job.spec)
        if wanted not in self._lacks:
            self._lacks[wanted] = self._lack(job.spec, self._firsts)
        return self._lacks[wanted]

    @property
    def has_no_cpu(self) -> bool:
        """Whether jobs have them all."""
        total = self._total[CPUS]
        return total is not None and total <= self._used.get(CPUS, 0)

    def _lack(self, spec: JobSpec, ahead: list[Job]) -> Reason | None:
        for kind in (CPUS, MEMORY):
            wanted, total = getattr(spec, kind), self._total[kind]
            if wanted is None or total is None:
                continue
            free = max(0, total - self._used.get(kind, 0))
            if wanted > free - _sum(ahead, kind):
                unit = "CPUs" if kind == CPUS else "MiB"
                return Reason(kind, wanted, free, unit, self._who(kind, total, free, ahead))
        return None

    def _who(self, kind: str, total: int, free: int, ahead: list[Job]) -> str:
        """Such as `8 of 32 are free: job 12 has 24`."""
        show = str if kind == CPUS else gib
        asked = ((id, getattr(spec, kind)) for id, spec in self._holders.items())
        most = nlargest(NAMED, ((n, id) for id, n in asked if n))
        has = [f"job {id} has {show(n)}" for n, id in most]
        before = ((job.id, getattr(job.spec, kind)) for job in ahead)
        has += [f"job {id} is before it and wants {show(n)}" for id, n in before if n]
        are = "are" if kind == CPUS and free != 1 else "is"
        left = f"{show(free)} of {show(total)} {are} free"
        return f"{left}: {', '.join(has)}" if has else left


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


def _name_few(jobs: Iterable[After]) -> str:
    """The first few of them, as text: there may be a whole array."""
    names = [str(job) for job in islice(jobs, FEW + 1)]
    return ", ".join(names if len(names) <= FEW else [*names[:FEW], "…"])


def unmet_dependency(job: Job, ended: Mapping[JobId, JobState]) -> After | None:
    """A dependency of the job that ended the wrong way, if any."""
    for after in job.spec.after:
        state = ended.get(after.job)
        if state is not None and not after.kind.accepts(state):
            return after
    return None


def _sum(jobs: Iterable[Job], kind: str) -> int:
    return sum(getattr(job.spec, kind) or 0 for job in jobs)
