"""The live jobs, indexed by id, by place in line, and by the GPUs they hold."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import Ended, JobsById, Outcome, among, part
from carmad.core.rules.share import Rates, Standing

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


ENDED_REMEMBERED = 4096  # outcomes kept for jobs that are submitted to depend on them


class Ledger:
    """All changes go through `put`, which maintains the indices and records what has changed."""

    def __init__(
        self,
        order: Callable[[Job], float],
        jobs: Iterable[Job] = (),
        ended: Iterable[Outcome] = (),
        standing: Callable[[Job], Standing] = lambda job: (True, 0),
    ) -> None:
        self._order = order
        self.standing = standing
        self.jobs = JobsById()
        self.holders: dict[JobId, Job] = {}  # those that hold GPUs, or run without any
        self.watched: dict[JobId, Job] = {}  # holders that the passing of time may affect
        self.conditional: dict[JobId, Job] = {}  # queued ones that may be blocked
        self.ended = Ended(ENDED_REMEMBERED, ended)
        self.suspended: dict[JobId, Job] = {}  # or on their way there or back
        self.held = Held()
        self.rates = Rates()
        self._places: dict[JobId, Place] = {}  # of the queued jobs
        self._line: list[Place] = []  # the same, sorted
        self._queued: list[Job] = []  # the jobs, in that order
        self._queue: tuple[Job, ...] | None = None  # `_queued` as a tuple; None: outdated
        self._running: tuple[Job, ...] | None = None
        self._residents: dict[GpuId, dict[JobId, Job]] = {}
        self._followers: dict[JobId, dict[JobId, None]] = {}  # a job's dependents, in id order
        self._groups: dict[str, dict[JobId, None]] = {}  # queued jobs by group
        self._changed: list[Job] = []
        self._pieces: list[Job] = []  # rows that were cut out of longer ones
        self._before: dict[JobId, Job | None] = {}  # the changed jobs, as they were
        self._touched: set[GpuId] = set()
        for job in jobs:
            self.put(job)
        self.forget_changes()

    def put(self, job: Job) -> None:
        """Make `job` the current version. Tasks that waited in one row with it keep waiting."""
        old = self.jobs.row(job.id)
        if old is not None and old.ids != job.ids:
            old = self._divide(old, job.ids)
        self._changed.append(job)
        self._before.setdefault(job.id, old)
        if old is None:
            self._follow(job)
        elif old.spec.after is not job.spec.after:
            self._follow_no_more(old)
            self._follow(job)
        if old is not None and old.waits:
            self._leave_line(old)
        elif old is not None and old.holds_gpus and not job.holds_gpus:
            self._let_go(old)
        if job.lives and not (old and old.lives):
            self.held.begin(job)
        elif old and old.lives and not job.lives:
            self.held.end(old)
        if job.suspension:
            self.suspended[job.id] = job
        else:
            self.suspended.pop(job.id, None)
        if job.ended:
            self._end(job)
            return
        self.jobs.put(job)
        if job.waits:
            self._join_line(job)
        elif job.holds_gpus:
            self._hold(job)

    def note(self, id: JobId, note: str) -> None:
        """Something that the owner of a live job should know."""
        job = self.jobs.rows.get(id)
        if job and (new := job.with_note(note)) is not job:
            self.put(new)

    def reorder(self, jobs: Iterable[Job]) -> None:
        """Recompute the places of these queued jobs."""
        for job in tuple(jobs):
            self._leave_line(job)
            self._join_line(job)

    def rerank(self) -> None:
        """Sort the queue anew, by the present standing of its jobs."""
        for id, (first, _, nice, order, _, at, _) in self._places.items():
            usual, rank = self.standing(self.jobs.rows[id])
            self._places[id] = (first, usual, nice, order, rank, at, id)
        self._line = sorted(self._places.values())
        self._queued = [self.jobs.rows[place[-1]] for place in self._line]
        self._queue = None

    def changes(self) -> tuple[Job, ...]:
        """Every version put since the last `forget_changes`, in order."""
        return tuple(self._changed)

    def before(self) -> tuple[Job, ...]:
        """The changed jobs as they were, except those that were not live."""
        return tuple(job for job in self._before.values() if job)

    def pieces(self) -> tuple[Job, ...]:
        """The rows that were cut out of longer ones since the last `forget_changes`."""
        return tuple(self._pieces)

    def forget_changes(self) -> None:
        self._changed.clear()
        self._before.clear()
        self._pieces.clear()

    def pop_touched(self) -> set[GpuId]:
        """The GPUs on whose residents anything has changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def line(self) -> tuple[Job, ...]:
        """The queued jobs in order, including those that may not start yet."""
        if self._queue is None:
            self._queue = tuple(self._queued)
        return self._queue

    def places(self) -> tuple[Place, ...]:
        """Of the jobs in `line`."""
        return tuple(self._line)

    def line_of_cpus(self) -> Iterator[Job]:
        """The queued jobs without GPUs, in order."""
        return (job for job in self.line() if not job.spec.gpus)

    def line_with(self, job: Job) -> tuple[Job, ...]:
        """The queue as if `job` were in it."""
        at = bisect_left(self._line, self._place(job))
        return (*self._queued[:at], job, *self._queued[at:])

    def running(self) -> tuple[Job, ...]:
        """The jobs that are running, starting or stopping, by id."""
        if self._running is None:
            self._running = tuple([self.holders[id] for id in sorted(self.holders)])
        return self._running

    def on_gpus(self) -> tuple[Job, ...]:
        """Those of them that hold GPUs."""
        return tuple([job for job in self.running() if job.gpus])

    def residents(self, gpu: GpuId) -> tuple[Job, ...]:
        """The jobs that hold this GPU, by id, so that the order survives a restart."""
        residents = self._residents.get(gpu, {})
        return tuple([residents[id] for id in sorted(residents)])

    def dependents(self, ids: range) -> Iterator[tuple[JobId, Job]]:
        """Yield each job that waits for one of `ids`, paired with that id, in the order of the ids.
        The caller may end jobs while it iterates."""
        for id in among(ids, self._followers):
            for job in tuple(self.jobs.rows[each] for each in self._followers.get(id, ())):
                yield id, job

    def alike(self, group: str) -> tuple[Job, ...]:
        """The queued runs of one recurring job."""
        return tuple(self.jobs.rows[id] for id in self._groups.get(group, ()))

    def _divide(self, row: Job, ids: range) -> Job:
        """Make these of its tasks a job, and those before and behind them others."""
        was = self._before.setdefault(row.id, row)
        if row.waits:
            self._leave_line(row)
        for its in (range(row.id, ids.start), ids, range(ids.stop, row.ids.stop)):
            if not its:
                continue
            piece = part(row, its)
            self._changed.append(piece)
            if piece.id != row.id:
                self._before.setdefault(piece.id, piece if was else None)
                self._pieces.append(piece)
            self.jobs.put(piece)
            if piece.id != row.id:
                self._follow(piece)
            if row.waits:
                self._join_line(piece)
        return part(row, ids)

    def _place(self, job: Job) -> Place:
        """Policies have no say about jobs without GPUs."""
        order = self._order(job) if job.spec.gpus else 0.0
        return place_in_line(job, order, self.standing(job))

    def _follow(self, job: Job) -> None:
        for after in job.spec.after:
            self._followers.setdefault(after.job, {})[job.id] = None

    def _follow_no_more(self, job: Job) -> None:
        for before in {after.job for after in job.spec.after}:
            del self._followers[before][job.id]
            if not self._followers[before]:
                del self._followers[before]

    def _join_line(self, job: Job) -> None:
        place = self._places[job.id] = self._place(job)
        at = bisect_left(self._line, place)
        self._line.insert(at, place)
        self._queued.insert(at, job)
        self._queue = None
        if is_conditional(job):
            self.conditional[job.id] = job
        self._groups.setdefault(job.group, {})[job.id] = None

    def _leave_line(self, job: Job) -> None:
        place = self._places.pop(job.id)
        at = bisect_left(self._line, place)
        del self._line[at], self._queued[at]
        self._queue = None
        self.conditional.pop(job.id, None)
        del self._groups[job.group][job.id]
        if not self._groups[job.group]:
            del self._groups[job.group]

    def _hold(self, job: Job) -> None:
        if job.id not in self.holders:
            self.held.give(job)
            if not job.spec.gpus:
                self.rates.hold(job)
            for gpu in job.gpus:
                there = self.residents(gpu)
                self.rates.change(there, (*there, job))
        self.holders[job.id] = job
        self._running = None
        for gpu in job.gpus:
            self._residents.setdefault(gpu, {})[job.id] = job
        self._touched.update(job.gpus)
        spec = job.spec
        watched = spec.time_limit_s is not None or job.profiling is not None or spec.interactive
        if watched or len(job.kernels) < len(job.gpus):
            self.watched[job.id] = job
        else:
            self.watched.pop(job.id, None)

    def _let_go(self, job: Job) -> None:
        del self.holders[job.id]
        self._running = None
        self.held.take(job)
        if not job.spec.gpus:
            self.rates.let_go(job)
        for gpu in job.gpus:
            there = self.residents(gpu)
            self.rates.change(there, [each for each in there if each.id != job.id])
            del self._residents[gpu][job.id]
        self._touched.update(job.gpus)
        self.watched.pop(job.id, None)

    def _end(self, job: Job) -> None:
        self.jobs.remove(job.id)
        self._follow_no_more(job)
        self.ended.remember(Outcome(job.id, job.state, job.tasks))
