"""The jobs that have not ended, found by id, by their place in line, and by the GPUs they hold."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from carmad.core.line import Place, is_conditional, place_in_line
from carmad.core.types import GpuId, Job, JobId, JobState

ENDED_REMEMBERED = 4096  # outcomes kept for jobs that are submitted to depend on them


class Ledger:
    """`put` is the only way in: it keeps every index right, and notes what has changed."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.holders: dict[JobId, Job] = {}  # those that hold GPUs
        self.conditional: dict[JobId, Job] = {}  # queued ones that a barrier may hold up
        self.ended: dict[JobId, JobState] = {}  # the most recent ones
        self._line: list[Place] = []  # the queued jobs' places, in order
        self._followers: dict[JobId, dict[JobId, None]] = {}  # who waits for a job, in id order
        self._changed: list[Job] = []

    def load(self, jobs: Iterable[Job], ended: Iterable[tuple[JobId, JobState]]) -> None:
        """Begin anew with these."""
        for index in (self.jobs, self.holders, self.conditional, self.ended, self._followers):
            index.clear()
        self._line.clear()
        self.ended.update(ended)
        for job in jobs:
            self.put(job)
        self._changed.clear()

    def put(self, job: Job) -> None:
        """Make `job` the current version."""
        old = self.jobs.get(job.id)
        if old is None:
            for after in job.spec.after:
                self._followers.setdefault(after.job, {})[job.id] = None
        elif old.state is JobState.QUEUED:
            del self._line[bisect_left(self._line, place_in_line(old))]
            self.conditional.pop(job.id, None)
        self._changed.append(job)
        if job.holds_gpus:
            self.holders[job.id] = job
        else:
            self.holders.pop(job.id, None)
        if job.ended:
            self._end(job)
            return
        self.jobs[job.id] = job
        self.ended.pop(job.id, None)  # it was requeued
        if job.state is JobState.QUEUED:
            insort(self._line, place_in_line(job))
            if is_conditional(job):
                self.conditional[job.id] = job

    def changes(self) -> tuple[Job, ...]:
        """Every version put since the last call, in order."""
        changed, self._changed = tuple(self._changed), []
        return changed

    def line(self) -> list[Job]:
        """The queued jobs in order, also those that may not start yet."""
        return [self.jobs[place[-1]] for place in self._line]

    def residents(self, gpu: GpuId) -> tuple[Job, ...]:
        return tuple(job for job in self.holders.values() if gpu in job.gpus)

    def waiting_for(self, job: JobId) -> tuple[Job, ...]:
        """Those that are to start after `job`."""
        return tuple(self.jobs[id] for id in self._followers.get(job, ()))

    def _end(self, job: Job) -> None:
        self.jobs.pop(job.id, None)
        for before in {after.job for after in job.spec.after}:
            del self._followers[before][job.id]
            if not self._followers[before]:
                del self._followers[before]
        self.ended[job.id] = job.state
        while len(self.ended) > ENDED_REMEMBERED:
            del self.ended[next(iter(self.ended))]
