"""The virtual single machine Ã₁ (A-SRPT paper, IV-C).

It is as fast as all GPUs together and serves one job at a time, always the one with the least
remaining work in GPU-seconds: preemptive SRPT. Jobs start in the order in which it finishes them.
A machine is an immutable value; the next one is derived from it.

If jobs may start before it has finished them (not in the paper), it is as fast as the idle GPUs.
If it were as fast as all GPUs, it would soon have finished every queued job while jobs that started
early hold the GPUs, and the order would be that of arrival.

A job arrives when the policy first sees it; only a machine rebuilt after a restart uses submission
times. It does not know jobs that have left the queue, so it has served the queued ones for longer
than it should: they start sooner, and finished ones are in the order of a queue of only these.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Set
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar

from carmad.plugin import Job, JobId


class Served(NamedTuple):
    """A job that the machine has not finished. The smallest is served; less nice jobs go first."""

    nice: int
    left: float  # GPU-seconds
    arrived_at: float
    id: JobId
    job: Job


class Done(NamedTuple):
    """A job that the machine has finished. Smallest first; recovering jobs before all."""

    is_new: bool
    nice: int
    done_at: float
    submitted_at: float
    id: JobId
    job: Job


Entry = TypeVar("Entry", Served, Done)


def work(job: Job) -> float:
    """Predicted work in GPU-seconds; 0 if the duration is unknown (IV-C.3)."""
    return (job.expected_s or 0.0) * job.spec.gpus


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's state at an instant, valid until a job arrives, leaves or is finished."""

    at: float = -math.inf
    speed: float = 0.0  # GPUs
    served: tuple[Served, ...] = ()  # in order; only the first gets less
    done: tuple[Done, ...] = ()  # in order
    queue: tuple[Job, ...] = ()  # the queue when last seen

    def follow(self, queue: tuple[Job, ...], now: float, speed: float) -> Machine:
        """The machine at `now` with this queue; the same object if nothing changed."""
        first_end = min(self.ends_at(1), default=math.inf)
        if queue is self.queue and speed == self.speed and first_end > now:
            return self
        old = {job.id: job for job in self.queue}
        new = [job for job in queue if old.get(job.id) is not job]
        gone = old.keys() - {job.id for job in queue}
        changed = {job.id: job for job in new if job.id in old}
        came = [job for job in new if job.id not in old]
        served, done = [*self.served], [*self.done]
        # Jobs that left were started or cancelled, and did not get any of the service since then.
        _take_out(served, gone - {each.id for each in _take_out(done, gone)})
        at = _serve(served, done, self.at, self.speed, now)
        for job in came:
            _arrive(served, done, job, at)
        _update(served, done, old, changed)
        at = _serve(served, done, at, speed, now)
        return Machine(at, speed, tuple(served), tuple(done), queue)

    def ends_at(self, first: int) -> list[float]:
        """When it will finish each of the `first` next jobs, if no other arrives."""
        if not self.speed:
            return [math.inf] * min(first, len(self.served))
        work_left = accumulate(each.left for each in self.served[:first])
        return [self.at + left / self.speed for left in work_left]


def rebuild(queue: tuple[Job, ...], now: float, speed: float) -> Machine:
    """A machine rebuilt as if only these jobs had existed, each since its submission."""
    finished: list[Job] = []
    working: list[Job] = []
    for job in queue:
        (finished if _is_finished(job) else working).append(job)
    served: list[Served] = []
    done = sorted(_finish(job, min(job.submitted_at, now)) for job in finished)
    at = -math.inf
    for job in sorted(working, key=attrgetter("submitted_at", "id")):
        at = _serve(served, done, at, speed, min(job.submitted_at, now))
        _arrive(served, done, job, at)
    at = _serve(served, done, at, speed, now)
    return Machine(at, speed, tuple(served), tuple(done), queue)


def _serve(served: list[Served], done: list[Done], at: float, speed: float, until: float) -> float:
    """Work from `at` to `until`, which is returned."""
    while served and speed and at + served[0].left / speed <= until:
        first = served.pop(0)
        at += first.left / speed
        insort(done, _finish(first.job, at))
    if served:
        served[0] = served[0]._replace(left=served[0].left - (until - at) * speed)
    return until


def _take_out(jobs: list[Entry], ids: Set[JobId]) -> list[Entry]:
    """Remove and return the entries of `jobs` with these ids, which are mostly near the front."""
    found: list[Entry] = []
    at = 0
    while len(found) < len(ids) and at < len(jobs):
        if jobs[at].id in ids:
            found.append(jobs.pop(at))
        else:
            at += 1
    return found


def _arrive(served: list[Served], done: list[Done], job: Job, at: float) -> None:
    if _is_finished(job):
        insort(done, _finish(job, job.submitted_at if job.attempt else at))
    else:
        insort(served, Served(job.spec.nice, work(job), at, job.id, job))


def _is_finished(job: Job) -> bool:
    """Whether the machine has no work to do for it: it was started before, or its duration is
    unknown."""
    return bool(job.attempts) or not job.expected_s


def _finish(job: Job, at: float) -> Done:
    return Done(job.retry is None, job.spec.nice, at, job.submitted_at, job.id, job)


def _update(
    served: list[Served], done: list[Done], old: dict[JobId, Job], new: dict[JobId, Job]
) -> None:
    """Update changed jobs: a prediction that grew by an hour adds an hour of work."""
    has_been = _take_out(done, new.keys())
    for each in has_been:
        insort(done, _finish(new[each.id], each.done_at))
    for other in _take_out(served, new.keys() - {each.id for each in has_been}):
        job = new[other.id]
        left = max(0.0, other.left + work(job) - work(old[job.id]))
        insort(served, other._replace(left=left, job=job))
