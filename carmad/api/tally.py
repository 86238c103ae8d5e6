"""What submissions are checked against without asking the core, which would take longer than the
rest of a submission: the GPUs, the limits, and what each user has in the queue."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import getsizeof

from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Environment, JobSpec, Owner, Script, Secrets
from carmad.core.messages import Discovered, Step
from carmad.core.rules.limits import Limit
from carmad.core.scheduler import Scheduler

Stored = Environment | Script | Secrets

PART_BYTES = 300  # memory per dependency, or per part of a layout


@dataclass(frozen=True, slots=True)
class Waiting:
    jobs: int
    bytes: int  # commands in memory; environments and scripts on disk, each counted once


@dataclass(slots=True)
class _Mine:
    """One user's waiting jobs."""

    jobs: int = 0
    bytes: int = 0
    stored: Counter[Stored] = field(default_factory=Counter)  # by number of jobs

    def add(self, spec: JobSpec) -> None:
        self.jobs += spec.tasks
        self.bytes += weight(spec) * spec.tasks
        for each in _common(spec):
            self.bytes += 0 if self.stored[each] else each.bytes
            self.stored[each] += 1

    def drop(self, spec: JobSpec) -> None:
        self.jobs -= spec.tasks
        self.bytes -= weight(spec) * spec.tasks
        for each in _common(spec):
            self.stored[each] -= 1
            if not self.stored[each]:
                del self.stored[each]
                self.bytes -= each.bytes

    def waiting(self, more: Sequence[JobSpec]) -> Waiting:
        new = {each for spec in more for each in _common(spec)} - self.stored.keys()
        size = self.bytes + sum(each.bytes for each in new)
        size += sum(spec.tasks * weight(spec) for spec in more)
        return Waiting(self.jobs + sum(spec.tasks for spec in more), size)


class Tally:
    """Updated by the core's thread with every step, and by the API's with every submission."""

    def __init__(self) -> None:
        self.begun = False
        self.gpus: tuple[Gpu, ...] = ()
        self.unread = ""  # why they are not known yet
        self.limits: dict[str, Limit] = {}
        self._specs: dict[JobId, JobSpec] = {}  # of waiting jobs
        self._by_user: defaultdict[Owner, _Mine] = defaultdict(_Mine)
        self._lock = threading.Lock()

    def begin(self, core: Scheduler) -> None:
        """Called in the core's thread, between two steps; from then on `note` keeps it current."""
        if not self.begun:
            self.gpus, self.unread = tuple(core.gpus.values()), core.state.fleet.unread
            self.limits = dict(core.state.limits)
            self.begun = True
            self._count(core.jobs.rows.values())

    def note(self, step: Step) -> None:
        if self.begun:
            for event in step.events:
                if isinstance(event, Discovered):
                    self.gpus, self.unread = event.gpus, event.unread
            self.limits |= {limit.subject: limit for limit in step.limits}
            self._count(step.jobs)

    def waiting(self, owner: Owner, more: Sequence[JobSpec] = ()) -> Waiting:
        """The user's waiting jobs, including those being submitted, and `more`."""
        with self._lock:
            return self._by_user[owner].waiting(more)

    def expect(self, first: JobId, specs: Sequence[JobSpec]) -> None:
        """Count jobs that are being submitted."""
        with self._lock:
            for id, spec in _with_ids(first, specs):
                self._add(id, spec)

    def give_up(self, first: JobId, specs: Sequence[JobSpec]) -> None:
        """Uncount jobs whose submission failed."""
        with self._lock:
            for id, _ in _with_ids(first, specs):
                self._drop(id)

    def _count(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                if job.ended or job.holds_gpus:
                    self._drop(job.id)
                else:
                    self._add(job.id, job.spec)

    def _add(self, job: JobId, spec: JobSpec) -> None:
        if self._specs.get(job) is not spec:
            self._drop(job)
            self._specs[job] = spec
            self._by_user[spec.owner].add(spec)

    def _drop(self, job: JobId) -> None:
        spec = self._specs.pop(job, None)
        if spec is not None:
            self._by_user[spec.owner].drop(spec)


def _with_ids(first: JobId, specs: Iterable[JobSpec]) -> Iterator[tuple[JobId, JobSpec]]:
    for spec in specs:
        yield first, spec
        first = JobId(first + spec.tasks)


def _common(spec: JobSpec) -> list[Stored]:
    return [each for each in (spec.environment, spec.script, spec.secrets) if each]


def weight(spec: JobSpec) -> int:
    """The approximate size of this job alone, in bytes. Each task has it once it starts."""
    params = spec.array.params if spec.array else ()
    pairs = chain.from_iterable((*spec.env, *params))
    words = chain(spec.argv, (spec.cwd, spec.name, spec.stdout), pairs)
    parts = len(spec.after) + (len(spec.layout.stages) if spec.layout else 0)
    return sum(map(getsizeof, words)) + PART_BYTES * parts
