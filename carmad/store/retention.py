"""Deletes jobs that ended long ago, and the oldest ended jobs of users who have too many."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, select

from carmad.config import Retention
from carmad.store import environments, externals
from carmad.store.tables import ENVIRONMENTS, JOBS, SCRIPTS

Transaction = Callable[[], AbstractContextManager[Connection]]

CHUNK = 500  # jobs deleted per transaction, so that commits can go in between
DAY = 86_400.0

_USER: BindParameter[str] = bindparam("name")
_GIVEN = delete(JOBS).where(
    JOBS.c.id.in_(select(func.json_each(bindparam("ids")).table_valued("value").c.value))
)
_OLD = (
    select(JOBS.c.id)
    .where(JOBS.c.ended_at < bindparam("before"))
    .order_by(JOBS.c.ended_at)
    .limit(CHUNK)
)
_OLDEST = (
    select(
        JOBS.c.id,
        JOBS.c.bytes + func.coalesce(ENVIRONMENTS.c.bytes, 0) + func.coalesce(SCRIPTS.c.bytes, 0),
    )
    .outerjoin(ENVIRONMENTS, ENVIRONMENTS.c.id == JOBS.c.environment)
    .outerjoin(SCRIPTS, SCRIPTS.c.id == JOBS.c.script)
    .where(JOBS.c.user == _USER, JOBS.c.ended_at.is_not(None))
    .order_by(JOBS.c.ended_at, JOBS.c.id)
    .limit(CHUNK)
)
_TAKEN = [
    select(func.coalesce(func.sum(table.c.bytes), 0)).where(table.c.user == _USER)
    for table in (JOBS, ENVIRONMENTS, SCRIPTS)
]


def purge(transaction: Transaction, now: float, retention: Retention) -> int:
    """Delete jobs, with their history, that have been kept for long enough; how many."""
    before = {"before": now - retention.ended_days * DAY}
    jobs, chunk = 0, CHUNK
    while chunk == CHUNK:
        with transaction() as connection:
            ids = connection.scalars(_OLD, before).all()
            chunk = connection.execute(_GIVEN, {"ids": json.dumps(list(ids))}).rowcount
        jobs += chunk
    with transaction() as connection:
        environments.forget_unused(connection)
        externals.forget(connection, before["before"])
    return jobs


def trim(transaction: Transaction, user: str, most_bytes: int) -> int:
    """Delete a user's oldest ended jobs until all together take at most `most_bytes`; returns how
    many."""
    forgotten, chunk = 0, 1
    while chunk:
        with transaction() as connection:
            chunk = _trim_some(connection, user, most_bytes)
        forgotten += chunk
    return forgotten


def _trim_some(connection: Connection, user: str, most_bytes: int) -> int:
    """Returns how many were deleted. More may be needed, since a shared environment is freed only
    with the last job that uses it."""
    whose = {"name": user}
    excess = sum(connection.scalar(taken, whose) or 0 for taken in _TAKEN) - most_bytes
    ids = []
    for id, size in connection.execute(_OLDEST, whose) if excess > 0 else ():
        ids.append(id)
        excess -= size
        if excess <= 0:
            break
    if ids:
        connection.execute(_GIVEN, {"ids": json.dumps(ids)})
        environments.forget_unused(connection, user)
    return len(ids)
