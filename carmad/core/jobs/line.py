"""What keeps a queued job from being shown to the policy at all: quotas, among others.

Jobs may ask for a part of the host's CPUs and memory. The first job of each line, of those for GPUs
and of those for CPUs alone, keeps what it wants free until it starts: otherwise small jobs could
pass a large one for ever. A job that asks for nothing counts for nothing, and waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from heapq import nlargest
from itertools import islice

from carmad.config import Host, Limits, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import CPUS, MEMORY, Held, asks_for_host, place_in_line
from carmad.core.jobs.spec import After, JobSpec, Owner
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Reason
from carmad.core.rules.limits import DAYS, DEFAULT, Limit, Period, Subject, default_limit, limit_of
from carmad.core.rules.share import DAY_S, HOUR_S, HostPart, Shares, frees_at, host_part
from carmad.readable import gib

FEW = 8  # dependencies of a job that are named
NAMED = 3  # jobs that a reason names: those that have most of the host


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


class Gate:
    """What keeps queued jobs from starting at one moment, whatever the state of the GPUs."""

    def __init__(
        self,
        now: float,
        live: Mapping[JobId, Job],
        held: Held,
        limits: Mapping[str, Limit],
        shares: Shares,
        settings: Settings,
        unread: str,
        lines: Iterable[Iterable[Job]],
    ) -> None:
        """`unread`: why the GPUs cannot be read; `lines`: of the jobs for GPUs, and of those for
        CPUs alone."""
        self.quotas = Quotas(limits, settings.limits, held.gpus, shares, now)
        self._now = now
        self._live = live
        self._held = held
        self._total = settings.host
        self._standing = shares.standing
        self._unread = unread
        self._lines = lines
        self._room: Room | None = None

    def blocker(self, job: Job) -> Reason | None:
        """Why the job has to wait; None: it need not."""
        return next(self.blockers(job), None)

    def blockers(self, job: Job, besides_host: bool = False) -> Iterator[Reason]:
        """Every such reason. `besides_host`: apart from what the host lacks.

        A dependency that is not live has been met: otherwise the step in which it ended would have
        cancelled this job.
        """
        spec, now = job.spec, self._now
        if job.barred:
            yield Reason("no_account", detail=job.barred)
        if job.held:
            yield Reason("suspended") if job.suspension else Reason("held")
        if spec.begin_at is not None and now < spec.begin_at:
            yield Reason("begin", spec.begin_at, now, "s")
        if spec.after and (before := _name_few(a for a in spec.after if a.job in self._live)):
            yield Reason("dependency", detail=before)
        if its := job.suspension:
            if now < its.again_at:
                yield Reason("resume_failed", its.again_at, its.failures)
        elif spec.array and spec.array.limit is not None:
            active = self._held.tasks[spec.array.array]
            if active >= spec.array.limit:
                yield _array_limit(spec.array.limit, active)
        if spec.gpus and self.quotas.any and (reason := self.quotas.refusal(spec.owner, spec.gpus)):
            yield reason
        asks = asks_for_host(spec) and not (besides_host or job.suspension)
        if asks and (lack := self.room.lack(job)):
            yield lack
        if self._unread and spec.gpus:
            yield Reason("gpus_unread", detail=self._unread)

    @property
    def room(self) -> Room:
        """What the host has left."""
        if self._room is None:
            firsts = [
                job for line in self._lines for job in islice(filter(self._is_ready, line), 1)
            ]
            # Policies have no say here: they do not know the jobs without GPUs.
            firsts.sort(key=lambda job: place_in_line(job, 0.0, self._standing(job)))
            self._room = Room(self._total, self._held.host, self._held.of_host, firsts)
        return self._room

    def _is_ready(self, job: Job) -> bool:
        """Whether it waits for nothing but GPUs and the host."""
        waits = next(self.blockers(job, besides_host=True), None)
        return job.state is JobState.QUEUED and waits is None


@lru_cache
def _array_limit(limit: int, active: int) -> Reason:
    """Shared by all of an array's tasks, of which there may be ten thousand."""
    return Reason("array_limit", limit, active, "tasks")


def _name_few(jobs: Iterable[After]) -> str:
    """The first few of them, as text: there may be a whole array."""
    names = [str(job) for job in islice(jobs, FEW + 1)]
    return ", ".join(names if len(names) <= FEW else [*names[:FEW], "…"])


def _sum(jobs: Iterable[Job], kind: str) -> int:
    return sum(getattr(job.spec, kind) or 0 for job in jobs)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits, and what counts against them at one moment."""

    limits: Mapping[str, Limit]
    settings: Limits
    held: Mapping[Owner, int]  # GPUs
    shares: Shares
    now: float
    _found: dict[tuple[Owner, int], Reason | None] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether jobs may have to wait for one."""
        return self.settings.gpus_per_user is not None or bool(self.limits)

    def refusal(self, owner: Owner, gpus: int) -> Reason | None:
        """Why a job of the user may not start now."""
        if (owner, gpus) not in self._found:
            self._found[owner, gpus] = self._refusal(owner, gpus)
        return self._found[owner, gpus]

    def of(self, subject: Subject) -> Limit:
        """The limit that applies to this subject."""
        if isinstance(subject, Owner):
            return limit_of(subject, self.limits, self.settings)
        if subject == DEFAULT:
            return default_limit(self.limits, self.settings)
        return self.limits.get(subject, Limit(subject))

    def gpus_held(self, subject: Subject) -> int:
        return sum(self.held.get(owner, 0) for owner in self._owners(subject))

    def hours_used(self, subject: Subject, per: Period) -> float:
        return self._usage_s(subject, self._today - DAYS[per] + 1) / HOUR_S

    def frees_at(self, subject: Subject) -> float:
        """When the subject's GPU-hours are below the limit again, if no more are used; infinite:
        never."""
        limit = self.of(subject)
        most_s = (limit.gpu_hours or 0.0) * HOUR_S
        return frees_at(partial(self._usage_s, subject), most_s, DAYS[limit.per], self.now)

    def _refusal(self, owner: Owner, gpus: int) -> Reason | None:
        account = self.shares.accounts.get(owner)
        groups = (f"@{group}" for group in account.groups) if account else ()
        limited = (group for group in groups if group in self.limits)
        subjects: tuple[Subject, ...] = (owner, *limited)
        for subject in subjects:
            limit = self.of(subject)
            name = limit.subject
            if limit.gpus is not None and (held := self.gpus_held(subject)) + gpus > limit.gpus:
                return Reason("quota", limit.gpus, held, "GPUs", name)
            if limit.gpu_hours is not None:
                used = self.hours_used(subject, limit.per)
                if used >= limit.gpu_hours:
                    unit = f"GPU-h per {limit.per}"
                    return Reason("gpu_hours", limit.gpu_hours, used, unit, name)
        return None

    def _owners(self, subject: Subject) -> Iterable[Owner]:
        if isinstance(subject, Owner):
            return (subject,)
        accounts = self.shares.accounts.values()
        return (each.owner for each in accounts if subject[1:] in each.groups)

    def _usage_s(self, subject: Subject, day: int) -> float:
        accounts = self.shares.accounts
        found = (accounts[owner] for owner in self._owners(subject) if owner in accounts)
        return math.fsum(each.since(day, self.now) for each in found)

    @property
    def _today(self) -> int:
        return int(self.now // DAY_S)
