"""Jobs that held GPUs, for reports. A page at a time, so that commits can go in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, select, tuple_

from carmad.core.types import JobState
from carmad.store.tables import JOBS

PAGE = 500  # jobs
LATEST = 2000  # of a user's jobs, in which runs of the same one are looked for
ALIKE = 64  # of those runs, the latest

Rows = Sequence[Any]
Reading = Callable[[], AbstractContextManager[Connection]]

_ROWS = select(JOBS.c.id, JOBS.c.ended_at, JOBS.c.body)
_THEN = (
    _ROWS.where(
        JOBS.c.ended_at >= bindparam("since"),
        JOBS.c.submitted_at < bindparam("until"),
        tuple_(JOBS.c.ended_at, JOBS.c.id) > tuple_(bindparam("at"), bindparam("id")),
    )
    .order_by(JOBS.c.ended_at, JOBS.c.id)
    .limit(PAGE)
)
_VALID = func.json_valid(JOBS.c.body)
_ALIKE = (
    _ROWS.where(
        JOBS.c.id.in_(
            select(JOBS.c.id)
            .where(JOBS.c.user == bindparam("user"))
            .order_by(JOBS.c.id.desc())
            .limit(LATEST)
        ),
        JOBS.c.state == JobState.SUCCEEDED.value,
        case((_VALID, func.json_extract(JOBS.c.body, "$.group"))) == bindparam("group"),
    )
    .order_by(JOBS.c.id.desc())
    .limit(ALIKE)
)


_PROFILES = select(
    JOBS.c.id, case((_VALID, func.json_extract(JOBS.c.body, "$.profile"))).label("profile")
).where(JOBS.c.id.in_(select(func.json_each(bindparam("ids")).table_valued("value").c.value)))


def profiles(reading: Reading, ids: Collection[int]) -> Iterator[Rows]:
    """The profiles of these jobs, as JSON; null: they have none."""
    left = list(ids)
    while left:
        page, left = left[:PAGE], left[PAGE:]
        with reading() as connection:
            yield connection.execute(_PROFILES, {"ids": json.dumps(page)}).all()


def there(reading: Reading, since: float, until: float) -> Iterator[Rows]:
    """Jobs that ended at `since` or later and were submitted before `until`."""
    page: dict[str, float] = {"since": since, "until": until, "at": since, "id": -1}
    more = True
    while more:
        with reading() as connection:
            rows = connection.execute(_THEN, page).all()
        yield rows
        if more := len(rows) == PAGE:
            page |= {"at": rows[-1].ended_at, "id": rows[-1].id}


def alike(reading: Reading, user: str, group: str) -> Rows:
    """The latest runs of the user's job that succeeded, among their latest jobs."""
    with reading() as connection:
        return connection.execute(_ALIKE, {"user": user, "group": group}).all()
