"""The virtual single machine Ã₁ (A-SRPT paper, IV-C).

It is as fast as all GPUs together and serves one job at a time, always the one with the least work
left, in GPU-seconds: preemptive SRPT. The order in which it ends jobs is that in which they are to
start. Nothing is replayed: a machine is a value, and the next one is made from it.

Where jobs may start before it is done with them (not in the paper), it is as fast as the GPUs that
are idle. Were it as fast as all, it would soon be done with everybody in line while jobs that
started early have the GPUs, and the order would be that of arrival.

A job arrives when the policy first sees it; only a machine that is made anew, after a restart,
goes by when jobs were submitted. That one knows nothing of jobs that have left the line, so it has
served those that are in it for longer than it should: they are to start sooner, and those that are
done are in the order of a line that had only them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar

from carmad.plugin import Job, JobId


class Served(NamedTuple):
    """A job that the machine has not done yet. The least is served; less nice jobs go first."""

    nice: int
    left: float  # GPU-seconds
    arrived_at: float
    id: JobId
    job: Job


class Done(NamedTuple):
    """One that it has: the least is to start first, and those that recover before all others."""

    is_new: bool
    nice: int
    done_at: float
    submitted_at: float
    id: JobId
    job: Job


Entry = TypeVar("Entry", Served, Done)


def work(job: Job) -> float:
    """In GPU-seconds; of one of which nobody knows how long it takes, none (IV-C.3)."""
    return (job.expected_s or 0.0) * job.spec.gpus


@dataclass(frozen=True, slots=True)
class Machine:
    """As it is at an instant, and until something arrives, leaves or is done."""

    at: float = -math.inf
    speed: float = 0.0  # GPUs
    served: tuple[Served, ...] = ()  # in order; only the first gets less
    done: tuple[Done, ...] = ()  # in order
    queue: tuple[Job, ...] = ()  # the line as it was last seen
    gone: frozenset[JobId] = frozenset()  # who had left it then

    def followed(self, queue: tuple[Job, ...], now: float, speed: float) -> Machine:
        """At `now`, when that is the line. The same machine if it would not differ."""
        if queue is self.queue and speed == self.speed and self._first_end() > now:
            return self
        before, after = _differing(self.queue, queue)
        old = {job.id: job for job in before}
        new = [job for job in after if old.get(job.id) is not job]
        gone = frozenset(old.keys() - {job.id for job in after})
        changed = {job.id: job for job in new if job.id in old}
        came = [job for job in new if job.id not in old]
        served, done = [*self.served], [*self.done]
        # Who left was started or cancelled: nothing of what went before was theirs.
        _taken_out(served, gone - {each.id for each in _taken_out(done, gone)})
        at = _serve(served, done, self.at, self.speed, now)
        for job in came:
            _arrive(served, done, job, at)
        _update(served, done, old, changed)
        at = _serve(served, done, at, speed, now)
        return Machine(at, speed, tuple(served), tuple(done), queue, gone)

    def ends_at(self, first: int) -> list[float]:
        """When it will have done each of the first so many jobs, if no other arrives."""
        if not self.speed:
            return [math.inf] * min(first, len(self.served))
        work_left = accumulate(each.left for each in self.served[:first])
        return [self.at + left / self.speed for left in work_left]

    def _first_end(self) -> float:
        return min(self.ends_at(1), default=math.inf)


def rebuilt(queue: tuple[Job, ...], now: float, speed: float) -> Machine:
    """As if there had never been other jobs than these, each since its submission."""
    served: list[Served] = []
    done: list[Done] = []
    at = -math.inf
    for job in sorted(queue, key=attrgetter("submitted_at", "id")):
        at = _serve(served, done, at, speed, min(job.submitted_at, now))
        _arrive(served, done, job, at)
    at = _serve(served, done, at, speed, now)
    return Machine(at, speed, tuple(served), tuple(done), queue)


def _serve(served: list[Served], done: list[Done], at: float, speed: float, until: float) -> float:
    """Work from `at` to `until`, which is returned."""
    while served and speed and at + served[0].left / speed <= until:
        first = served.pop(0)
        at += first.left / speed
        insort(done, _done(first.job, at))
    if served:
        served[0] = served[0]._replace(left=served[0].left - (until - at) * speed)
    return until


def _taken_out(jobs: list[Entry], ids: Set[JobId]) -> list[Entry]:
    """Those of them that are among `jobs`, which loses them. They mostly stand near the front."""
    found: list[Entry] = []
    at = 0
    while len(found) < len(ids) and at < len(jobs):
        if jobs[at].id in ids:
            found.append(jobs.pop(at))
        else:
            at += 1
    return found


def _arrive(served: list[Served], done: list[Done], job: Job, at: float) -> None:
    """One that was started before has had its turn in the machine."""
    if job.attempt or not work(job):
        insort(done, _done(job, job.submitted_at if job.attempt else at))
    else:
        insort(served, Served(job.spec.nice, work(job), at, job.id, job))


def _done(job: Job, at: float) -> Done:
    return Done(job.retry is None, job.spec.nice, at, job.submitted_at, job.id, job)


def _update(
    served: list[Served], done: list[Done], old: dict[JobId, Job], new: dict[JobId, Job]
) -> None:
    """Other versions of some jobs: a prediction that changed by an hour is an hour more."""
    has_been = _taken_out(done, new.keys())
    for each in has_been:
        insort(done, _done(new[each.id], each.done_at))
    for other in _taken_out(served, new.keys() - {each.id for each in has_been}):
        job = new[other.id]
        left = max(0.0, other.left + work(job) - work(old[job.id]))
        insort(served, other._replace(left=left, job=job))


def _differing(old: Sequence[Job], new: Sequence[Job]) -> tuple[Sequence[Job], Sequence[Job]]:
    """Both without the beginning and the end that they share: long lines hardly ever change."""
    if old is new:
        return (), ()
    begin = _same(old, new)
    old, new = old[begin:], new[begin:]
    end = _same(old[::-1], new[::-1])
    return old[: len(old) - end], new[: len(new) - end]


def _same(one: Sequence[Job], other: Sequence[Job]) -> int:
    """How many jobs at the beginning are the same: by halves, as slices are compared quickly."""
    begin, end = 0, min(len(one), len(other))
    while begin < end:
        middle = (begin + end + 1) // 2
        if one[begin:middle] == other[begin:middle]:
            begin = middle
        else:
            end = middle - 1
    return begin
