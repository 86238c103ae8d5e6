"""Tasks of an array that wait alike are one row (`core.tasks`). One that gets a row of its own
keeps the past that they shared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import Connection, text

from carmad.core.tasks import part
from carmad.core.types import ENDED, Job, JobId
from carmad.store.rows import job_of

_STANDING = text(
    "SELECT value AS id, jobs.id AS row, jobs.state, jobs.tasks FROM json_each(:ids)"
    " JOIN jobs ON jobs.id = (SELECT max(id) FROM jobs WHERE id <= value)"
    " WHERE jobs.id + jobs.tasks > value"
)
_ROWS = text("SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))")
_COPY_PAST = text(
    "INSERT INTO transitions (step, at, job, before, after, attempt) SELECT"
    " step, at, :id, before, after, attempt FROM transitions WHERE job = :row ORDER BY id"
)
_TAKE_IDS = text("UPDATE sqlite_sequence SET seq = :last WHERE name = 'jobs' AND seq < :last")

Rows = dict[JobId, JobId]  # which one each is a part of


def standing(
    connection: Connection, jobs: Mapping[JobId, Job]
) -> tuple[dict[JobId, str], Rows, list[Job]]:
    """Before `jobs` are written: the states of those that are known, which of them another row
    stands for, and the rest of such rows, if the core does not know it: tasks that have ended."""
    found = connection.execute(_STANDING, {"ids": json.dumps(list(jobs))}).all()
    states = {JobId(each.id): str(each.state) for each in found}
    rows = {JobId(each.id): JobId(each.row) for each in found if each.id != each.row}
    ended = {each.row for each in found if each.tasks > 1 and each.state in ENDED}
    rest: list[Job] = []
    if ended:
        for row in connection.execute(_ROWS, {"ids": json.dumps(list(ended))}).all():
            whole = job_of(row)
            taken = (jobs[id].ids for id in sorted(jobs) if id in whole.ids)
            rest += [part(whole, ids) for ids in _without(whole.ids, taken)]
            rows |= {each.id: whole.id for each in rest if each.id != whole.id}
    return states, rows, rest


def _without(ids: range, taken: Iterable[range]) -> Iterator[range]:
    """The parts of `ids` outside the ranges in `taken`, which are sorted."""
    start = ids.start
    for each in taken:
        if start < each.start:
            yield range(start, each.start)
        start = max(start, each.stop)
    if start < ids.stop:
        yield range(start, ids.stop)


def share_past(connection: Connection, rows: Rows) -> None:
    """After the rows were written, and before what is new of them."""
    if rows:
        connection.execute(_COPY_PAST, [{"id": id, "row": row} for id, row in rows.items()])


def take_ids(connection: Connection, jobs: Iterable[Job]) -> None:
    """No other job gets the ids of the tasks that have no row yet."""
    if last := max((job.ids[-1] for job in jobs if job.tasks > 1), default=0):
        connection.execute(_TAKE_IDS, {"last": last})
