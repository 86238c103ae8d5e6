"""The record of external processes: those that used GPUs outside of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.sqlite import insert

from carmad.store.tables import EXTERNALS
from carmad.store.values import External, ExternalTotals

KEPT_PER_USER = 1000
SHOWN = 100

_INSERT = insert(EXTERNALS)
_NEW, _OLD = _INSERT.excluded, EXTERNALS.c
_UPSERT = _INSERT.on_conflict_do_update(
    index_elements=[_OLD.gpu, _OLD.pid, _OLD.started_at],
    set_={
        "seen_to": _NEW.seen_to,
        "peak_mib": func.max(
            func.coalesce(_OLD.peak_mib, _NEW.peak_mib), func.coalesce(_NEW.peak_mib, _OLD.peak_mib)
        ),
    },
)
_KEY = (_OLD.gpu, _OLD.pid, _OLD.started_at)
_RANKED = select(
    *_KEY,
    func.row_number().over(partition_by=_OLD.user, order_by=_OLD.seen_to.desc()).label("place"),
).subquery()
_SURPLUS = select(_RANKED.c.gpu, _RANKED.c.pid, _RANKED.c.started_at).where(
    _RANKED.c.place > KEPT_PER_USER
)


def record(connection: Connection, found: Sequence[External]) -> None:
    """Add processes, or what has become of those that are known."""
    connection.execute(_UPSERT, [asdict(one) for one in found])


def forget(connection: Connection, before: float) -> None:
    """Delete those that were last seen before that, and each user's oldest if there are many."""
    connection.execute(delete(EXTERNALS).where(_OLD.seen_to < before))
    connection.execute(delete(EXTERNALS).where(tuple_(*_KEY).in_(_SURPLUS)))


def latest(connection: Connection, since: float, user: str | None) -> tuple[External, ...]:
    """Those seen since `since`, the most recently seen first."""
    query = select(EXTERNALS).where(_OLD.seen_to >= since).order_by(_OLD.seen_to.desc())
    if user is not None:
        query = query.where(_OLD.user == user)
    return tuple(External(**row) for row in connection.execute(query.limit(SHOWN)).mappings())


def totals(
    connection: Connection, since: float, user: str | None, until: float | None = None
) -> tuple[ExternalTotals, ...]:
    """Per user, of what was there in `since` ≤ t < `until`; only the time in between counts."""
    begin = func.max(_OLD.seen_from, since)
    end = _OLD.seen_to if until is None else func.min(_OLD.seen_to, until)
    query = (
        select(_OLD.user, func.count(), func.sum(end - begin) / 3600, func.max(_OLD.peak_mib))
        .where(_OLD.seen_to >= since)
        .group_by(_OLD.user)
        .order_by(_OLD.user)
    )
    if user is not None:
        query = query.where(_OLD.user == user)
    if until is not None:
        query = query.where(_OLD.seen_from < until)
    return tuple(ExternalTotals(*row) for row in connection.execute(query))
