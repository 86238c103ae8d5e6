"""Attempts are values of their own within a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic_core import from_json, to_json

from carmad.store.flat import Move, Placed, current_form

revision = "0004"
down_revision = "0003"

AT_ONCE = 64  # jobs, of which each may have a command of 1 MiB

JOBS = sa.table("jobs", *map(sa.column, ("id", "attempt", "body")))
TRANSITIONS = sa.table(
    "transitions", *map(sa.column, ("id", "at", "job", "before", "after", "attempt"))
)
DECISIONS = sa.table("decisions", *map(sa.column, ("id", "at", "job", "body")))


def upgrade() -> None:
    connection = op.get_bind()
    update = sa.update(JOBS).where(JOBS.c.id == sa.bindparam("job"))
    for rows in _jobs(connection):
        ids = [row.id for row in rows]
        moves, placed = _moves(connection, ids), _placed(connection, ids)
        for row in rows:
            try:
                old = from_json(row.body)
                new = current_form(old, moves[row.id], placed[row.id])
            except (ValueError, LookupError, TypeError):
                continue  # no job: left for who reads it to say
            if new != old:
                body = to_json(new).decode()
                connection.execute(update.values(body=body), {"job": row.id})


def _jobs(connection: sa.Connection) -> Iterator[Sequence[sa.Row[Any, Any]]]:
    last: int | None = -1
    while last is not None:
        some = sa.select(JOBS.c.id, JOBS.c.body).where(JOBS.c.id > last)
        rows = connection.execute(some.order_by(JOBS.c.id).limit(AT_ONCE)).all()
        yield rows
        last = rows[-1].id if rows else None


def _moves(connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Move]]:
    found = defaultdict(list)
    its = TRANSITIONS.c
    columns = sa.select(its.job, its.at, its.before, its.after, its.attempt)
    for job, *move in connection.execute(columns.where(its.job.in_(ids)).order_by(its.id)):
        found[job].append(tuple(move))
    return found


def _placed(connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Placed]]:
    """Most decisions are to wait: one at a time, as a job may have thousands."""
    found = defaultdict(list)
    its = DECISIONS.c
    rows = sa.select(its.job, its.at, its.body).where(its.job.in_(ids)).order_by(its.id)
    for job, at, body in connection.execute(rows):
        try:
            gpus = from_json(body)["placement"]["gpus"]
        except (ValueError, LookupError, TypeError):
            continue
        if gpus:
            found[job].append((at, gpus))
    return found
