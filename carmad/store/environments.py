"""The environments and scripts of jobs, each kind in a table of its own: equal ones of a user are
stored once.

They may contain secrets, so they are only in the database, which root alone can read, and in memory
only while a job is launched or estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, Table, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from carmad.core.messages import Event, Submitted
from carmad.core.recurrence import telling_variables
from carmad.core.types import Environment, JobSpec, Script
from carmad.errors import CarmaError
from carmad.store.tables import ENVIRONMENTS, JOBS, SCRIPTS

_DIGEST_BYTES = 20
_KINDS = ((ENVIRONMENTS, JOBS.c.environment), (SCRIPTS, JOBS.c.script))


def without(spec: JobSpec) -> JobSpec:
    """The spec as the core and its row have it: with references in place of its environment and
    its script."""
    if spec.env:
        body = to_json(spec.env)
        environment = Environment(_digest(spec.uid, body), len(body))
        spec = replace(spec, env=telling_variables(spec.env), environment=environment)
    if spec.script:
        body = spec.script.text.encode()
        script = Script(_digest(spec.uid, body), len(body), spec.script.word)
        spec = replace(spec, script=script)
    return spec


def _digest(uid: int, body: bytes) -> str:
    # Users do not share equal ones: each counts against its user's quota.
    return blake2b(b"%d " % uid + body, digest_size=_DIGEST_BYTES).hexdigest()


def keep(connection: Connection, events: Iterable[Event]) -> None:
    """Store what new jobs bring, in the transaction that adds the jobs."""
    for event in events:
        if isinstance(event, Submitted) and event.specs:
            spec = event.specs[0]  # all tasks of an array share one
            if event.env:
                _keep(connection, ENVIRONMENTS, spec, spec.environment, to_json(event.env).decode())
            if event.script:
                _keep(connection, SCRIPTS, spec, spec.script, event.script)


def _keep(
    connection: Connection,
    table: Table,
    spec: JobSpec,
    named: Environment | Script | None,
    body: str,
) -> None:
    if named:
        row = {"id": named.id, "user": spec.user, "bytes": named.bytes, "body": body}
        connection.execute(insert(table).on_conflict_do_nothing(), row)


def whole(connection: Connection, spec: JobSpec) -> JobSpec:
    """The spec with its complete environment and script. Raises CarmaError if they are no longer
    stored."""
    changes: dict[str, Any] = {}
    if spec.environment:
        body = _read(connection, ENVIRONMENTS, spec.environment.id)
        changes["env"] = tuple((name, value) for name, value in from_json(body))
    if spec.script:
        text = _read(connection, SCRIPTS, spec.script.id)
        changes["script"] = replace(spec.script, text=text)
    return replace(spec, **changes)


def _read(connection: Connection, table: Table, id: str) -> str:
    body: str | None = connection.scalar(select(table.c.body).where(table.c.id == id))
    if body is None:
        what = table.name.removesuffix("s")
        raise CarmaError(f"the job's {what} is no longer stored", "Submit the job again.")
    return body


def forget_unused(connection: Connection, user: str | None = None) -> None:
    """Delete what no stored job uses; `user`: only this user's."""
    for table, used in _KINDS:
        unused = delete(table).where(~select(JOBS.c.id).where(used == table.c.id).exists())
        if user is None:
            connection.execute(unused)
        else:
            connection.execute(unused.where(table.c.user == bindparam("name")), {"name": user})
