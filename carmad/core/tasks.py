"""Tasks of an array that wait alike are one job: the first of them stands for the others until they
start or somebody changes one. So an array costs what one job costs while it waits."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from carmad.core.types import Job, JobId


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


def indices(job: Job) -> range:
    """Of the tasks that it stands for; none: it is of no array."""
    array = job.spec.array
    if array is None:
        return range(0)
    return range(array.index, array.index + job.tasks * array.step, array.step)


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


class JobsById(Mapping[JobId, Job]):
    """Each job by its id, also the tasks that wait as one: asked for by its own id, a task is a job
    of its own. `rows` are the jobs as they are kept, by the id of their first task."""

    def __init__(self, rows: Iterable[Job] = ()) -> None:
        self.rows: dict[JobId, Job] = {}
        self._several: list[JobId] = []  # the rows that stand for more than one task, sorted
        self._tasks = 0
        for row in rows:
            self.put(row)

    def row(self, id: JobId) -> Job | None:
        """The row that is this job, or stands for it."""
        if (row := self.rows.get(id)) or not self._several:
            return row
        before = bisect_right(self._several, id)
        row = self.rows[self._several[before - 1]] if before else None
        return row if row and id in row.ids else None

    def parts(self, ids: range) -> list[Job]:
        """The rows that hold these jobs, each cut down to `ids`."""
        found: list[Job] = []
        id = ids.start
        while id < ids.stop:
            if row := self.row(JobId(id)):
                its = range(id, min(row.ids.stop, ids.stop))
                found.append(part(row, its))
                id = its.stop
            else:
                id += 1
        return found

    def put(self, row: Job) -> None:
        """Add the row, or replace the one with its id, in its place."""
        self._count(self.rows.get(row.id), -1)
        self.rows[row.id] = row
        self._count(row, 1)

    def remove(self, id: JobId) -> None:
        """Remove the row whose first task has this id, if there is one."""
        self._count(self.rows.pop(id, None), -1)

    def copy(self) -> JobsById:
        made = JobsById()
        made.rows, made._several = self.rows.copy(), self._several.copy()
        made._tasks = self._tasks
        return made

    def _count(self, row: Job | None, sign: int) -> None:
        if row is None:
            return
        self._tasks += sign * row.tasks
        if row.tasks > 1 and sign > 0:
            insort(self._several, row.id)
        elif row.tasks > 1:
            self._several.remove(row.id)

    def __getitem__(self, id: JobId) -> Job:
        row = self.row(id)
        if row is None:
            raise KeyError(id)
        return row if row.tasks == 1 else part(row, range(id, id + 1))

    def __contains__(self, id: object) -> bool:
        return id in self.rows or (isinstance(id, int) and self.row(JobId(id)) is not None)

    def __iter__(self) -> Iterator[JobId]:
        return (JobId(id) for row in self.rows.values() for id in row.ids)

    def __len__(self) -> int:
        return self._tasks
