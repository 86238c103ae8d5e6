"""Queries behind lists and reports: names of jobs, the runs of a period, and totals."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    func,
    select,
    text,
    tuple_,
)

from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import ENDED, JobState
from carmad.store.damage import is_text
from carmad.store.tables import JOBS, TRANSITIONS
from carmad.store.values import Named, Spread, Statistics, Totals

# -- how people know jobs, without reading the jobs themselves


def in_body(path: str) -> Any:
    """A part of a job's JSON; null if that is damaged."""
    return func.json_extract(case((func.json_valid(JOBS.c.body), JOBS.c.body)), path)


_ID = func.json_each(bindparam("ids")).table_valued("value").c.value
_ROW = JOBS.alias()
INDEX, STEP = in_body("$.spec.array.index"), func.coalesce(in_body("$.spec.array.step"), 1)
_NAMES = select(
    _ID.label("id"),
    JOBS.c.user,
    JOBS.c.name,
    JOBS.c.uid,
    JOBS.c.array,
    (INDEX + (_ID - JOBS.c.id) * STEP).label("index"),
).where(  # tasks of an array may be one row, which has the id of the first
    JOBS.c.id == select(func.max(_ROW.c.id)).where(_ROW.c.id <= _ID).scalar_subquery(),
    JOBS.c.id + JOBS.c.tasks > _ID,
)


def read_names(connection: Connection, ids: Collection[JobId]) -> dict[JobId, Named]:
    """Of those that exist and are not damaged."""
    rows = connection.execute(_NAMES, {"ids": json.dumps(list(ids))}).all() if ids else ()
    return {
        JobId(id): Named(f"{array}_{index}" if array else str(id), user, uid, name)
        for id, user, name, uid, array, index in rows
        if isinstance(uid, int) and is_text(user) and is_text(name)
    }


# -- a search through ended jobs: in one index, which has all that it needs

_ORDERS = {
    "submitted": "id",
    "ended": "ended_at",
    "name": "name COLLATE NOCASE",
    "user": "user",
    "state": "state",
    "ran": "started_at IS NULL, ended_at - started_at",  # those that never did are last
    "gpu-hours": "gpu_seconds",
}
Order = Literal["submitted", "ended", "name", "user", "state", "ran", "gpu-hours"]


@dataclass(frozen=True, slots=True)
class Search:
    """Ended jobs that existed at some time in `since` ≤ t < `until`. `text`: all its words are in
    the job's label, name, parameters or command. `before`: only those with a smaller id."""

    user: str | Owner | None = None  # an account, or all who have had the name
    states: Collection[JobState] = ENDED
    since: float | None = None
    until: float | None = None
    text: str = ""
    before: JobId | None = None

    def conditions(self) -> tuple[str, dict[str, object]]:
        """In SQL, with its parameters."""
        given: dict[str, object] = {
            "user": self.user.user if isinstance(self.user, Owner) else self.user,
            "uid": self.user.uid if isinstance(self.user, Owner) else None,
            "since": self.since,
            "until": self.until,
            "before": self.before,
        }
        tests = {
            "user": "user = :user",
            "uid": "uid = :uid",
            "since": "ended_at >= :since",
            "until": "submitted_at < :until",
            "before": "id < :before",
        }
        found = ["+state IN (SELECT value FROM json_each(:states))"]  # +: not by its index
        found += [test for name, test in tests.items() if given[name] is not None]
        given["states"] = json.dumps([state.value for state in self.states])
        for number, word in enumerate(self.text.casefold().split()):
            found.append(f"instr(words, :word{number})")
            given[f"word{number}"] = word
        return " AND ".join(found), given


_IN_INDEX = "FROM jobs INDEXED BY ix_jobs_search WHERE ended_at IS NOT NULL AND"


def count_found(connection: Connection, search: Search) -> int:
    where, given = search.conditions()
    return int(connection.scalar(text(f"SELECT count(*) {_IN_INDEX} {where}"), given) or 0)


def find_ids(
    connection: Connection, search: Search, order: Order, reverse: bool, first: int, limit: int
) -> Sequence[int]:
    """In order, the largest or latest first unless `reverse`."""
    where, given = search.conditions()
    key, way = _ORDERS[order], "ASC" if reverse else "DESC"
    # Where most are found, in the order of the rows or of `ix_jobs_ended_at`, the first are enough.
    in_order = order == "submitted" or (order == "ended" and search.user is None)
    source = "FROM jobs WHERE" if in_order and not search.text else _IN_INDEX
    found = text(
        f"SELECT id {source} {where} ORDER BY {key} {way}, id {way} LIMIT :limit OFFSET :first"
    )
    return connection.scalars(found, given | {"limit": limit, "first": first}).all()


# -- jobs that held GPUs: a page at a time, so that commits can go in between

PAGE = 500  # jobs
LATEST = 2000  # of a user's jobs, in which runs of the same one are looked for
ALIKE = 64  # of those runs, the latest

_ROWS = select(JOBS.c.id, JOBS.c.ended_at, JOBS.c.body)
SUMMARIES = (  # of jobs that ended at `since` or later, and were submitted before `until`
    _ROWS.where(
        JOBS.c.ended_at >= bindparam("since"),
        JOBS.c.submitted_at < bindparam("until"),
        tuple_(JOBS.c.ended_at, JOBS.c.id) > tuple_(bindparam("at"), bindparam("id")),
    )
    .order_by(JOBS.c.ended_at, JOBS.c.id)
    .limit(PAGE)
)
SUMMARIES_ALIKE = (  # of the latest runs of a user's job that succeeded, among their latest jobs
    _ROWS.where(
        JOBS.c.id.in_(
            select(JOBS.c.id)
            .where(JOBS.c.user == bindparam("user"), JOBS.c.uid == bindparam("uid"))
            .order_by(JOBS.c.id.desc())
            .limit(LATEST)
        ),
        JOBS.c.state == JobState.SUCCEEDED.value,
        in_body("$.group") == bindparam("group"),
    )
    .order_by(JOBS.c.id.desc())
    .limit(ALIKE)
)

# -- totals over ended jobs, for `carma stats`


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


def of_user(user: str | Owner) -> tuple[ColumnElement[bool], ...]:
    """Whose jobs: an account's, or those of all who have had the name."""
    if isinstance(user, Owner):
        return JOBS.c.user == user.user, JOBS.c.uid == user.uid
    return (JOBS.c.user == user,)


def totals_query(
    since: float, until: float | None, user: str | Owner | None
) -> Select[*tuple[Any, ...]]:
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
    return rows if user is None else rows.where(*of_user(user))


def sum_up(rows: Iterable[Sequence[object]]) -> Statistics:
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
