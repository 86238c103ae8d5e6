"""What each user has waiting, known without asking the core: quotas are checked against it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from sys import getsizeof

from carmad.core.messages import Discovered, Step
from carmad.core.scheduler import Scheduler
from carmad.core.types import Environment, Gpu, Job, JobId, JobSpec

PART_BYTES = 300  # memory of a dependency, or of a part of a layout


@dataclass(frozen=True, slots=True)
class Waiting:
    jobs: int
    bytes: int  # of their commands in memory, and of their environments on disk, each once


@dataclass(slots=True)
class _Mine:
    """A user's."""

    jobs: int = 0
    bytes: int = 0
    environments: Counter[Environment] = field(default_factory=Counter)  # and jobs that have them

    def add(self, spec: JobSpec) -> None:
        self.jobs += 1
        self.bytes += weight(spec)
        if spec.environment:
            self.bytes += 0 if self.environments[spec.environment] else spec.environment.bytes
            self.environments[spec.environment] += 1

    def drop(self, spec: JobSpec) -> None:
        self.jobs -= 1
        self.bytes -= weight(spec)
        if spec.environment:
            self.environments[spec.environment] -= 1
            if not self.environments[spec.environment]:
                del self.environments[spec.environment]
                self.bytes -= spec.environment.bytes

    def waiting(self, more: Sequence[JobSpec]) -> Waiting:
        new = {spec.environment for spec in more if spec.environment} - self.environments.keys()
        size = self.bytes + sum(each.bytes for each in new)
        for _, same in groupby(more, key=id):  # tasks of an array, which may be 10,000
            alike = list(same)
            size += len(alike) * weight(alike[0])
        return Waiting(self.jobs + len(more), size)


class Tally:
    """The core's thread tells it of every step, the API's of what it is about to submit."""

    def __init__(self) -> None:
        self.begun = False
        self.gpus: tuple[Gpu, ...] = ()
        self.unread = ""  # why they are not known yet
        self._specs: dict[JobId, JobSpec] = {}  # of those that wait
        self._by_user: defaultdict[int, _Mine] = defaultdict(_Mine)
        self._lock = threading.Lock()

    @staticmethod
    def alone(specs: Sequence[JobSpec]) -> Waiting:
        """As if nothing of the user's waited."""
        return _Mine().waiting(specs)

    def begin(self, core: Scheduler) -> None:
        """In the core's thread, between two steps: from here on `note` keeps it right."""
        if not self.begun:
            self.gpus, self.unread = tuple(core.gpus.values()), core.unread
            self.begun = True
            self._count(core.jobs.values())

    def note(self, step: Step) -> None:
        if self.begun:
            for event in step.events:
                if isinstance(event, Discovered):
                    self.gpus, self.unread = event.gpus, event.unread
            self._count(step.jobs)

    def waiting(self, uid: int, more: Sequence[JobSpec] = ()) -> Waiting:
        """What of a user's waits, with what is being submitted, and with these if they did."""
        with self._lock:
            return self._by_user[uid].waiting(more)

    def expect(self, first: JobId, specs: Sequence[JobSpec]) -> None:
        """These are being submitted."""
        with self._lock:
            for id, spec in enumerate(specs, first):
                self._add(JobId(id), spec)

    def give_up(self, first: JobId, specs: Sequence[JobSpec]) -> None:
        """They were not taken in after all."""
        with self._lock:
            for id, _ in enumerate(specs, first):
                self._drop(JobId(id))

    def _count(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                if job.ended or job.holds_gpus:
                    self._drop(job.id)
                else:
                    self._add(job.id, job.spec)

    def _add(self, job: JobId, spec: JobSpec) -> None:
        if job not in self._specs:
            self._specs[job] = spec
            self._by_user[spec.uid].add(spec)

    def _drop(self, job: JobId) -> None:
        spec = self._specs.pop(job, None)
        if spec is not None:
            self._by_user[spec.uid].drop(spec)


def weight(spec: JobSpec) -> int:
    """The bytes of memory that tell this job from others, about."""
    words = chain(spec.argv, (spec.cwd, spec.name, spec.stdout), chain.from_iterable(spec.env))
    parts = len(spec.after) + (len(spec.layout.stages) if spec.layout else 0)
    return sum(map(getsizeof, words)) + PART_BYTES * parts
