"""Who was on which GPU with whom, and for how long.

Jobs that have ended come as summaries, with only what receipts and reports need of them: a month
has 50,000.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from carmad.core.jobs.attempt import Attempt, Cause, GpuId, JobId, Mode
from carmad.core.jobs.findings import Company, Estimate, Profile, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask, Owner
from carmad.core.jobs.states import JobState

_LEAVES, _COMES = range(2)  # the order of simultaneous marks


@dataclass(frozen=True, slots=True)
class ExitSummary:
    cause: Cause


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    gpus: tuple[GpuId, ...]
    mode: Mode | None = None
    started_at: float | None = None
    ended_at: float | None = None  # None: it is there now
    shared: bool = False  # somebody else was on one of its GPUs, outside of the queue perhaps
    exit: ExitSummary | None = None


@dataclass(frozen=True, slots=True)
class SpecSummary:
    user: str
    uid: int
    name: str
    array: ArrayTask | None = None
    begin_at: float | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.user)


@dataclass(frozen=True, slots=True)
class StatusSummary:
    state: JobState
    attempt: AttemptSummary | None = None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The fields are named as in `Job`, so that a summary can be read from a job's JSON."""

    id: JobId
    spec: SpecSummary
    status: StatusSummary
    submitted_at: float
    earlier: tuple[AttemptSummary, ...] = ()
    group: str = ""
    estimate: Estimate | None = None
    usage: Usage = Usage()  # noqa: RUF009 - it is frozen
    profile: Profile | None = None
    company: tuple[Company, ...] = ()
    alone_s: float | None = None  # how long it would have run alone, where that is known exactly

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def attempts(self) -> tuple[AttemptSummary, ...]:
        return (*self.earlier, its) if (its := self.status.attempt) else self.earlier


Seen = Job | JobSummary


def first_started_at(job: Seen) -> float | None:
    return next((each.started_at for each in job.attempts if each.started_at is not None), None)


def label(job: Seen) -> str:
    """What people call it: 42, or 42_3 for a task of an array."""
    array = job.spec.array
    return f"{array.array}_{array.index}" if array else str(job.id)


@dataclass(slots=True, eq=False)
class Stay:
    """What became of one attempt on its GPUs, in seconds; GPU-seconds where it says so."""

    job: JobId
    attempt: Attempt | AttemptSummary
    run_s: float = 0.0
    shared_s: float = 0.0  # with another job on any of its GPUs
    beside: dict[JobId, float] | None = None  # seconds with each that was once the only other
    others: set[JobId] | None = None  # all that were with it
    # Only in the period:
    held_s: float = 0.0
    held_shared_s: float = 0.0
    share: float = 0.0  # GPU-seconds: of a GPU with n jobs, each has an n-th
    since: float = 0.0  # up to which it has been counted
    there: tuple[list[Stay], ...] = ()  # who is on each of its GPUs


@dataclass(slots=True)
class GpuTime:
    """One GPU in the period, in seconds."""

    busy_s: float = 0.0  # with any job on it
    shared_s: float = 0.0  # with several
    jobs: set[JobId] = field(default_factory=set)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Who was on the GPUs at the same time."""

    stays: dict[JobId, list[Stay]]  # of the jobs that held GPUs
    gpus: dict[GpuId, GpuTime]


def overlaps(jobs: Iterable[Seen], since: float, until: float, now: float) -> Overlaps:
    """Follow the jobs through time. `since` to `until` is the period; `now` ends the stays that
    have not ended. If `jobs` has all that were there in the period, the numbers for the period are
    exact, and so are those for the whole run of a job that began in it."""
    marks: list[tuple[float, int, JobId, int, Stay]] = []
    found: dict[JobId, list[Stay]] = {}
    for job in jobs:
        attempts: tuple[Attempt | AttemptSummary, ...] = job.attempts
        for number, each in enumerate(attempts):
            end = now if each.ended_at is None else each.ended_at
            if each.started_at is not None and each.gpus and each.started_at < end:
                stay = Stay(job.id, each, since=each.started_at)
                found.setdefault(job.id, []).append(stay)
                marks.append((each.started_at, _COMES, job.id, number, stay))
                marks.append((end, _LEAVES, job.id, number, stay))
    marks.sort(key=itemgetter(0, 1, 2, 3))
    follow = _Follow(since, until)
    for at, what, _, _, stay in marks:
        follow.mark(at, what, stay)
    return Overlaps(found, follow.gpus)


class _Follow:
    def __init__(self, since: float, until: float) -> None:
        self.gpus: dict[GpuId, GpuTime] = {}
        self._since = since
        self._until = until
        self._present: dict[GpuId, list[Stay]] = {}

    def mark(self, at: float, what: int, stay: Stay) -> None:
        gpus = dict.fromkeys(stay.attempt.gpus)
        stay.there = tuple([self._present.setdefault(gpu, []) for gpu in gpus])
        for gpu, there in zip(gpus, stay.there, strict=True):
            for each in there:
                self._settle(each, at)
            time = self.gpus.get(gpu)
            if time is None:
                time = self.gpus[gpu] = GpuTime()
            if there and (inside := self._inside(time.since, at)):
                time.busy_s += inside
                time.shared_s += inside if len(there) > 1 else 0.0
            time.since = at
            if self._since < at and (stay.attempt.started_at or 0.0) < self._until:
                time.jobs.add(stay.job)
        for there in stay.there:  # only now: all have been settled as they were before
            if what == _COMES:
                there.append(stay)
            else:
                there.remove(stay)

    def _inside(self, begin: float, end: float) -> float:
        return max(0.0, min(end, self._until) - max(begin, self._since))

    def _settle(self, stay: Stay, at: float) -> None:
        """Count the time since the last change on its GPUs."""
        seconds = at - stay.since
        if seconds <= 0:
            return
        inside = self._inside(stay.since, at)
        stay.since = at
        stay.run_s += seconds
        stay.held_s += inside
        most = 0
        for there in stay.there:
            stay.share += inside / len(there)
            most = max(most, len(there))
        if most == 1:
            return
        stay.shared_s += seconds
        stay.held_shared_s += inside
        others = {each.job for there in stay.there for each in there if each is not stay}
        stay.others = others if stay.others is None else stay.others | others
        if len(others) == 1:
            beside = stay.beside = {} if stay.beside is None else stay.beside
            (other,) = others
            beside[other] = beside.get(other, 0.0) + seconds
