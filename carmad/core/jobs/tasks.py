"""Tasks of an array that wait alike are one job: the first of them stands for the others until they
start or somebody changes one. So an array costs what one job costs while it waits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import Generic, NamedTuple, TypeVar

from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState


def part(job: Job, ids: range) -> Job:
    """The job that stands for only these tasks of `job`."""
    array = job.spec.array
    if array is None or ids == job.ids:
        return job
    index = array.index + (ids.start - job.id) * array.step
    array = replace(array, index=index, more=len(ids) - 1)
    return replace(job, id=JobId(ids.start), spec=replace(job.spec, array=array))


def singly(jobs: Iterable[Job]) -> Iterator[Job]:
    """Each task as a job of its own."""
    for job in jobs:
        if job.tasks == 1:
            yield job
        else:
            yield from (part(job, range(id, id + 1)) for id in job.ids)


def split(jobs: Iterable[Job], most: int) -> tuple[list[Job], int]:
    """The first tasks, at most so many, and the number of the others."""
    first: list[Job] = []
    others = 0
    for job in jobs:
        taken = min(job.tasks, most)
        if taken:
            first.append(job if taken == job.tasks else part(job, job.ids[:taken]))
        most -= taken
        others += job.tasks - taken
    return first, others


def indices(job: Job) -> range:
    """The indices of the tasks that it stands for; none: it is not in an array."""
    array = job.spec.array
    if array is None:
        return range(0)
    return range(array.index, array.index + job.tasks * array.step, array.step)


def gapless(jobs: Iterable[Job]) -> Iterator[range]:
    """The indices of these jobs as ranges without gaps, in order: the first few cost little,
    however many tasks there are."""

    def pieces(its: range) -> Iterator[range]:
        return iter([its]) if its.step == 1 else (range(index, index + 1) for index in its)

    whole = range(0)
    for piece in merge(*(pieces(indices(job)) for job in jobs), key=lambda its: its.start):
        if whole and piece.start > whole.stop:
            yield whole
            whole = range(0)
        start = whole.start if whole else piece.start
        whole = range(start, max(whole.stop, piece.stop))
    if whole:
        yield whole


def ids_of(job: Job, among: range) -> range:
    """The ids of the tasks whose index is in `among`, a range without gaps."""
    its = indices(job)
    first, end = (max(0, -((its.start - at) // its.step)) for at in (among.start, among.stop))
    return job.ids[first:end]


def spans(every: Sequence[int]) -> Iterator[range]:
    """Indices of an array, in their order, as few ranges."""
    begin, count = 0, len(every)
    while begin < count:
        end, step = begin + 1, 1
        if end < count and every[end] > every[begin]:
            step = every[end] - every[begin]
            while end < count and every[end] - every[end - 1] == step:
                end += 1
        yield range(every[begin], every[end - 1] + step, step)
        begin = end


def among(ids: range, known: Collection[JobId]) -> list[JobId]:
    """Those of `ids` that are in `known`, in order; each of the shorter of the two is looked at."""
    if len(ids) > len(known):
        return sorted(id for id in known if id in ids)
    return [id for id in map(JobId, ids) if id in known]


def overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


R = TypeVar("R", "Job", "Outcome")
V = TypeVar("V")


class Rows(Mapping[JobId, V], Generic[R, V]):
    """What is known of jobs, by id. A row may stand for several jobs whose ids follow each other;
    `rows` has it by the first of them."""

    def __init__(self) -> None:
        self.rows: dict[JobId, R] = {}
        self._several: list[JobId] = []  # the rows that stand for more than one job, sorted
        self._jobs = 0

    def row(self, id: JobId) -> R | None:
        """The row that is this job, or stands for it."""
        if (row := self.rows.get(id)) or not self._several:
            return row
        before = bisect_right(self._several, id)
        row = self.rows[self._several[before - 1]] if before else None
        return row if row and id in row.ids else None

    def put(self, row: R) -> None:
        """Add the row, or replace the one with its first id, in its place."""
        first = JobId(row.ids.start)
        self._count(self.rows.get(first), -1)
        self.rows[first] = row
        self._count(row, 1)

    def remove(self, id: JobId) -> None:
        """Remove the row whose first job has this id, if there is one."""
        self._count(self.rows.pop(id, None), -1)

    def _count(self, row: R | None, sign: int) -> None:
        if row is None:
            return
        ids = row.ids
        self._jobs += sign * len(ids)
        if len(ids) > 1 and sign > 0:
            insort(self._several, JobId(ids.start))
        elif len(ids) > 1:
            del self._several[bisect_left(self._several, ids.start)]

    def within(self, ids: range) -> Iterator[R]:
        """The rows that stand for any of these jobs, in order."""
        if len(ids) > len(self.rows):
            found = (row for row in self.rows.values() if overlap(row.ids, ids))
            yield from sorted(found, key=lambda row: row.ids.start)
            return
        id = ids.start
        while id < ids.stop:
            row = self.row(JobId(id))
            id = row.ids.stop if row else id + 1
            if row:
                yield row

    def forget(self, ids: range) -> None:
        """Remove these jobs, and from rows that stand for others too only them."""
        for row in tuple(self.within(ids)):
            self.remove(JobId(row.ids.start))
            for rest in (range(row.ids.start, ids.start), range(ids.stop, row.ids.stop)):
                if rest:
                    self.put(self._part(row, rest))

    def _part(self, row: R, ids: range) -> R:
        """The row that stands for only these jobs of `row`."""
        raise NotImplementedError

    def _value(self, row: R, id: JobId) -> V:
        """What `row` says of the job `id`, which is one of its own."""
        raise NotImplementedError

    def __getitem__(self, id: JobId) -> V:
        row = self.row(id)
        if row is None:
            raise KeyError(id)
        return self._value(row, id)

    def __contains__(self, id: object) -> bool:
        return id in self.rows or (isinstance(id, int) and self.row(JobId(id)) is not None)

    def __iter__(self) -> Iterator[JobId]:
        return (JobId(id) for row in self.rows.values() for id in row.ids)

    def __len__(self) -> int:
        return self._jobs


class JobsById(Rows[Job, Job]):
    """Each job by its id, also the tasks that wait as one: asked for by its own id, a task is a job
    of its own."""

    def __init__(self, rows: Iterable[Job] = ()) -> None:
        super().__init__()
        for row in rows:
            self.put(row)

    def parts(self, ids: range) -> list[Job]:
        """The rows that hold these jobs, each cut down to `ids`."""
        return [part(row, overlap(row.ids, ids)) for row in self.within(ids)]

    def copy(self) -> JobsById:
        made = JobsById()
        made.rows, made._several = self.rows.copy(), self._several.copy()
        made._jobs = self._jobs
        return made

    def _part(self, row: Job, ids: range) -> Job:
        return part(row, ids)

    def _value(self, row: Job, id: JobId) -> Job:
        return row if row.tasks == 1 else part(row, range(id, id + 1))


class Outcome(NamedTuple):
    """How a job ended, and `tasks` - 1 others whose ids follow."""

    id: JobId
    state: JobState
    tasks: int = 1

    @property
    def ids(self) -> range:
        return range(self.id, self.id + self.tasks)


class Ended(Rows[Outcome, JobState]):
    """How the latest jobs ended, up to a maximum: tasks that ended as one are one row."""

    rows: OrderedDict[JobId, Outcome]  # the latest at the end; a dict is slow to drop its first

    def __init__(self, most: int, ended: Iterable[Outcome] = ()) -> None:
        super().__init__()
        self.rows = OrderedDict()
        self._most = most
        for outcome in ended:
            self.remember(outcome)

    def remember(self, outcome: Outcome) -> None:
        self.put(outcome)
        while len(self) > self._most:
            oldest = next(iter(self.rows.values()))
            self.remove(oldest.id)
            if rest := oldest.ids[len(self) + oldest.tasks - self._most :]:
                self.put(self._part(oldest, rest))
                self.rows.move_to_end(JobId(rest.start), last=False)

    def _part(self, row: Outcome, ids: range) -> Outcome:
        return Outcome(JobId(ids.start), row.state, len(ids))

    def _value(self, row: Outcome, id: JobId) -> JobState:
        return row.state
