"""Who was on which GPU with whom, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from carmad.core.attempt import GpuId, JobId
from carmad.core.ran import Ran, Stay

_LEAVES, _COMES = range(2)  # the order of simultaneous marks


@dataclass(slots=True, eq=False)
class Stayed:
    """What became of one stay, in seconds; GPU-seconds where it says so."""

    job: JobId
    stay: Stay
    run_s: float = 0.0
    shared_s: float = 0.0  # with another job on any of its GPUs
    beside: dict[JobId, float] | None = None  # seconds with each that was once the only other
    others: set[JobId] | None = None  # all that were with it
    # Only in the period:
    held_s: float = 0.0
    held_shared_s: float = 0.0
    share: float = 0.0  # GPU-seconds: of a GPU with n jobs, each has an n-th
    since: float = 0.0  # up to which it has been counted
    there: tuple[list[Stayed], ...] = ()  # who is on each of its GPUs


@dataclass(slots=True)
class GpuTime:
    """One GPU in the period, in seconds."""

    busy_s: float = 0.0  # with any job on it
    shared_s: float = 0.0  # with several
    jobs: set[JobId] = field(default_factory=set)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Met:
    stays: dict[JobId, list[Stayed]]  # of the jobs that held GPUs
    gpus: dict[GpuId, GpuTime]


def met(jobs: Iterable[Ran], since: float, until: float, now: float) -> Met:
    """Follow the jobs through time. `since` to `until` is the period; `now` ends the stays that
    have not ended. With all jobs that were there in the period, what is said of it is exact, and
    so is what is said of the whole run of a job that began in it."""
    marks: list[tuple[float, int, JobId, int, Stayed]] = []
    found: dict[JobId, list[Stayed]] = {}
    for job in jobs:
        for number, stay in enumerate(job.attempts):
            end = now if stay.ended_at is None else stay.ended_at
            if stay.started_at is not None and stay.gpus and stay.started_at < end:
                stayed = Stayed(job.id, stay, since=stay.started_at)
                found.setdefault(job.id, []).append(stayed)
                marks.append((stay.started_at, _COMES, job.id, number, stayed))
                marks.append((end, _LEAVES, job.id, number, stayed))
    marks.sort(key=itemgetter(0, 1, 2, 3))
    follow = _Follow(since, until)
    for at, what, _, _, stayed in marks:
        follow.mark(at, what, stayed)
    return Met(found, follow.gpus)


class _Follow:
    def __init__(self, since: float, until: float) -> None:
        self.gpus: dict[GpuId, GpuTime] = {}
        self._since = since
        self._until = until
        self._present: dict[GpuId, list[Stayed]] = {}

    def mark(self, at: float, what: int, stayed: Stayed) -> None:
        gpus = dict.fromkeys(stayed.stay.gpus)
        stayed.there = tuple([self._present.setdefault(gpu, []) for gpu in gpus])
        for gpu, there in zip(gpus, stayed.there, strict=True):
            for each in there:
                self._settle(each, at)
            time = self.gpus.get(gpu)
            if time is None:
                time = self.gpus[gpu] = GpuTime()
            if there and (inside := self._inside(time.since, at)):
                time.busy_s += inside
                time.shared_s += inside if len(there) > 1 else 0.0
            time.since = at
            if self._since < at and (stayed.stay.started_at or 0.0) < self._until:
                time.jobs.add(stayed.job)
        for there in stayed.there:  # only now: until then, nobody has come or gone
            if what == _COMES:
                there.append(stayed)
            else:
                there.remove(stayed)

    def _inside(self, begin: float, end: float) -> float:
        return max(0.0, min(end, self._until) - max(begin, self._since))

    def _settle(self, stayed: Stayed, at: float) -> None:
        """Count the time since the last change on its GPUs."""
        seconds = at - stayed.since
        if seconds <= 0:
            return
        inside = self._inside(stayed.since, at)
        stayed.since = at
        stayed.run_s += seconds
        stayed.held_s += inside
        most = 0
        for there in stayed.there:
            stayed.share += inside / len(there)
            most = max(most, len(there))
        if most == 1:
            return
        stayed.shared_s += seconds
        stayed.held_shared_s += inside
        others = {each.job for there in stayed.there for each in there if each is not stayed}
        stayed.others = others if stayed.others is None else stayed.others | others
        if len(others) == 1:
            beside = stayed.beside = {} if stayed.beside is None else stayed.beside
            (other,) = others
            beside[other] = beside.get(other, 0.0) + seconds
