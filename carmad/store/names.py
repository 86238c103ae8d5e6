"""How people know jobs, without reading the jobs themselves."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, bindparam, case, func, select

from carmad.core.types import JobId
from carmad.store.damage import is_text
from carmad.store.tables import JOBS
from carmad.store.values import Named

_BODY = case((func.json_valid(JOBS.c.body), JOBS.c.body))
_ID = func.json_each(bindparam("ids")).table_valued("value").c.value
_ROW = JOBS.alias()
_INDEX, _STEP = (func.json_extract(_BODY, f"$.spec.array.{name}") for name in ("index", "step"))
_NAMES = select(
    _ID.label("id"),
    JOBS.c.user,
    JOBS.c.name,
    func.json_extract(_BODY, "$.spec.uid").label("uid"),
    JOBS.c.array,
    (_INDEX + (_ID - JOBS.c.id) * func.coalesce(_STEP, 1)).label("index"),
).where(  # tasks of an array may be one row, which has the id of the first
    JOBS.c.id == select(func.max(_ROW.c.id)).where(_ROW.c.id <= _ID).scalar_subquery(),
    JOBS.c.id + JOBS.c.tasks > _ID,
)


def read(connection: Connection, ids: Collection[JobId]) -> dict[JobId, Named]:
    """Of those that exist and are not damaged."""
    rows = connection.execute(_NAMES, {"ids": json.dumps(list(ids))}).all() if ids else ()
    return {
        JobId(id): Named(f"{array}_{index}" if array else str(id), user, uid, name)
        for id, user, name, uid, array, index in rows
        if isinstance(uid, int) and is_text(user) and is_text(name)
    }
