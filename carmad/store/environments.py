"""The environments of jobs, in a table of their own: equal ones of a user are stored once.

They may contain secrets, so they are only in the database, which root alone can read, and in memory
only while a job is launched or estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from carmad.core.messages import Event, Submitted
from carmad.core.recurrence import telling
from carmad.core.types import Environment, JobSpec
from carmad.errors import CarmaError
from carmad.store.tables import ENVIRONMENTS, JOBS

Env = tuple[tuple[str, str], ...]

_DIGEST_BYTES = 20
_BODY = select(ENVIRONMENTS.c.body).where(ENVIRONMENTS.c.id == bindparam("wanted"))
_INSERT = insert(ENVIRONMENTS).on_conflict_do_nothing()
_DELETE_UNUSED = delete(ENVIRONMENTS).where(
    ~select(JOBS.c.id).where(JOBS.c.environment == ENVIRONMENTS.c.id).exists()
)
_DELETE_UNUSED_OF = _DELETE_UNUSED.where(ENVIRONMENTS.c.user == bindparam("name"))


def without(spec: JobSpec) -> JobSpec:
    """The spec as the core and its row have it: with a reference in place of its environment."""
    if not spec.env:
        return spec
    body = to_json(spec.env)
    # Users do not share equal environments: each counts against its user's quota.
    id = blake2b(b"%d " % spec.uid + body, digest_size=_DIGEST_BYTES).hexdigest()
    return replace(spec, env=telling(spec.env), environment=Environment(id, len(body)))


def keep(connection: Connection, events: Iterable[Event]) -> None:
    """Store the environments of new jobs, in the transaction that adds the jobs."""
    if rows := [row for event in events if isinstance(event, Submitted) for row in _rows(event)]:
        connection.execute(_INSERT, rows)


def _rows(event: Submitted) -> Iterable[dict[str, Any]]:
    spec = event.specs[0] if event.specs else None  # all tasks of an array share one
    if spec and spec.environment and event.env:
        size, body = spec.environment.bytes, to_json(event.env).decode()
        yield {"id": spec.environment.id, "user": spec.user, "bytes": size, "body": body}


def read(connection: Connection, environment: Environment) -> Env:
    body = connection.scalar(_BODY, {"wanted": environment.id})
    if body is None:
        raise CarmaError("the job's environment is no longer stored", "Submit the job again.")
    return tuple((name, value) for name, value in from_json(body))


def forget_unused(connection: Connection, user: str | None = None) -> None:
    """Delete environments that no stored job uses; `user`: only this user's."""
    if user is None:
        connection.execute(_DELETE_UNUSED)
    else:
        connection.execute(_DELETE_UNUSED_OF, {"name": user})
