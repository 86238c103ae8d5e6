"""Totals over ended jobs, for `carma stats`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from carmad.core.types import ENDED, JobState
from carmad.store.damage import is_text
from carmad.store.tables import JOBS, TRANSITIONS
from carmad.store.values import Spread, Statistics, Totals


class _Row(NamedTuple):
    user: str
    state: str
    tasks: int  # of an array; they ended before they started
    submitted_at: float
    first_start: float | None  # null: it ended without having started
    started_at: float | None
    ended_at: float
    gpu_seconds: float
    energy_j: float


def query(since: float, until: float | None, user: str | None) -> Select[*tuple[Any, ...]]:
    """Selects the jobs that ended at some time in `since` ≤ t < `until`, as one `_Row` each."""
    first_start = (
        select(func.min(TRANSITIONS.c.at))
        .where(TRANSITIONS.c.job == JOBS.c.id, TRANSITIONS.c.after == JobState.STARTING.value)
        .scalar_subquery()
    )
    rows = select(
        JOBS.c.user,
        JOBS.c.state,
        JOBS.c.tasks,
        JOBS.c.submitted_at,
        first_start,
        JOBS.c.started_at,
        JOBS.c.ended_at,
        JOBS.c.gpu_seconds,
        JOBS.c.energy_j,
    ).where(JOBS.c.ended_at >= since)
    if until is not None:
        rows = rows.where(JOBS.c.ended_at < until)
    return rows if user is None else rows.where(JOBS.c.user == user)


def summarise(rows: Iterable[Sequence[object]]) -> Statistics:
    every = [_Row(*row) for row in rows if _sound(row)]  # type: ignore[arg-type]
    return Statistics(
        overall=_totals(every),
        users=_by(lambda row: row.user, every),
        months=_by(lambda row: f"{datetime.fromtimestamp(row.ended_at):%Y-%m}", every),
    )


def _by(key: Callable[[_Row], str], rows: Iterable[_Row]) -> tuple[tuple[str, Totals], ...]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return tuple((name, _totals(found[name])) for name in sorted(found))


def _sound(row: Sequence[object]) -> bool:
    """Whether a row of `query` has valid columns: damaged rows are ignored."""
    user, state, tasks, *numbers = row
    right = is_text(user) and state in ENDED and isinstance(tasks, int)
    return right and all(number is None or isinstance(number, float) for number in numbers)


def _totals(rows: Sequence[_Row]) -> Totals:
    states = Counter[JobState]()
    for row in rows:
        states[JobState(row.state)] += row.tasks
    return Totals(
        jobs=tuple((state, states[state]) for state in JobState if states[state]),
        gpu_hours=math.fsum(row.gpu_seconds for row in rows) / 3600,
        energy_j=math.fsum(row.energy_j for row in rows),
        wait=_spread([r.first_start - r.submitted_at for r in rows if r.first_start is not None]),
        run=_spread([r.ended_at - r.started_at for r in rows if r.started_at is not None]),
    )


def _spread(seconds: list[float]) -> Spread:
    if not seconds:
        return Spread()
    seconds.sort()
    return Spread(
        mean_s=math.fsum(seconds) / len(seconds),
        p95_s=seconds[math.ceil(0.95 * len(seconds)) - 1],
    )
