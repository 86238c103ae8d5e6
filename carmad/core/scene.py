"""A snapshot of what the core knows, for other threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carmad.config import Fairness
from carmad.core.gpus.gpu import Drain, Gpu
from carmad.core.gpus.gpuview import GpuView, Memo
from carmad.core.gpus.readings import failed_gpu, memory_of
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.control import refusal
from carmad.core.jobs.findings import Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Held, Place
from carmad.core.jobs.line import Gate
from carmad.core.jobs.tasks import JobsById
from carmad.core.placing.decision import Decision
from carmad.core.placing.view import View
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Shares


@dataclass(frozen=True, slots=True)
class Scene:
    """Taken in the core's thread by `Scheduler.snapshot`, read in others."""

    view: View
    gpus: Mapping[GpuId, Gpu]
    live: JobsById
    usage: Mapping[JobId, Usage]
    line: tuple[Job, ...]  # all jobs that wait, in order
    running: tuple[Job, ...] = ()  # with those that hold no GPUs
    decisions: Mapping[JobId, Decision] = field(default_factory=dict)
    held: Held = field(default_factory=Held)
    unread: str = ""  # why the GPUs are not known yet
    drains: Mapping[GpuId, Drain] = field(default_factory=dict)
    policy: str = ""  # its name
    shares: Shares = field(default_factory=lambda: Shares(Fairness()))
    limits: Mapping[str, Limit] = field(default_factory=dict)
    places: tuple[Place, ...] = ()  # of the jobs in `line`
    reservations: tuple[Reservation, ...] = ()
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @property
    def now(self) -> float:
        return self.view.now

    @property
    def gate(self) -> Gate:
        """Why a queued job is not shown to the policy, or does not start without GPUs."""
        return self.memo.recall("gate", self._gate)

    def _gate(self) -> Gate:
        line = self.line  # what refers to the scene, and is kept in its memo, would keep it alive
        lines = ([job for job in line if bool(job.spec.gpus) is of] for of in (True, False))
        known = self.now, self.live, self.held, self.limits, self.shares
        return Gate(*known, self.view.settings, self.unread, lines)

    def place(self, job: JobId) -> int | None:
        """A job's place in line, from 1."""
        row = self.live.row(job)
        first = self.memo.recall("places", _places, self.line).get(row.id) if row else None
        return first + job - row.id if row and first else None

    def memory_mib(self, job: JobId) -> int | None:
        """The memory that a job holds now, on the GPU where it holds most."""
        return self.memo.recall("used", memory_by_job, self.view.gpus).get(job)

    def failure(self, job: Job) -> str:
        """Which of the job's GPUs does not work, by its last reading, and why; "" if all do."""
        return failed_gpu(job, self.gpus, lambda gpu: self.view.gpu(gpu).sample)

    def suspension_refusal(self, job: Job, asked: bool = False) -> str:
        """Why the job cannot be suspended now; "" if it can. `asked`: until it is resumed."""
        there = (self.view.gpu(gpu) for gpu in job.gpus if gpu in self.view.node_of)
        mib = memory_of(job, (gpu.sample for gpu in there))
        suspended = (each for each in self.live.rows.values() if each.suspension)
        return refusal(job, mib, suspended, self.view.settings, self.now, asked)

    def tasks(self, array: JobId) -> Sequence[Job]:
        """The tasks of an array that have not ended; those that wait alike as one job."""
        return self.memo.recall("arrays", _arrays, self.live).get(array, ())

    @property
    def head(self) -> JobId | None:
        """The first job that may start: it blocks the queue while it has to wait."""
        return self.view.queue[0].id if self.view.queue else None

    def current(self, job: JobId) -> Decision | None:
        """The last decision on a waiting job, unless the policy has since stopped before it."""
        row = self.live.row(job)
        mine = self.decisions.get(row.id if row else job)
        if mine is None or self.head is None:
            return mine
        heads = self.decisions.get(self.head)
        return mine if heads is None or mine.at >= heads.at else None


def _places(line: Iterable[Job]) -> dict[JobId, int]:
    """Jobs without GPUs have a line of their own."""
    places: dict[JobId, int] = {}
    last = {True: 0, False: 0}
    for job in line:
        of_gpus = job.spec.gpus > 0
        places[job.id] = last[of_gpus] + 1
        last[of_gpus] += job.tasks
    return places


def _arrays(live: JobsById) -> dict[JobId, list[Job]]:
    found: dict[JobId, list[Job]] = {}
    for job in sorted(live.rows.values(), key=lambda job: job.id):
        if job.spec.array:
            found.setdefault(job.spec.array.array, []).append(job)
    return found


def memory_by_job(views: Iterable[GpuView]) -> dict[JobId, int]:
    """MiB that each job holds now, on the GPU where it holds most."""
    most: dict[JobId, int] = {}
    for view in views:
        here: dict[JobId, int] = {}
        for process in view.sample.processes if view.sample else ():
            if process.job is not None and process.memory_mib is not None:
                here[process.job] = here.get(process.job, 0) + process.memory_mib
        for job, mib in here.items():
            most[job] = max(most.get(job, 0), mib)
    return most
