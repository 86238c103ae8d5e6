"""The environments of jobs: each content of a user once, beside the jobs and not within them.

They may hold what is nobody else's business: so they are in the file that root alone may read,
and in memory only while a job is started or looked at.
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
    """The spec as the core and its row have it: its environment is named, and no part of it."""
    if not spec.env:
        return spec
    body = to_json(spec.env)
    # One user's is not another's, even where they are equal: each counts for whose it is.
    id = blake2b(b"%d " % spec.uid + body, digest_size=_DIGEST_BYTES).hexdigest()
    return replace(spec, env=telling(spec.env), environment=Environment(id, len(body)))


def keep(connection: Connection, events: Iterable[Event]) -> None:
    """Those of new jobs, in the transaction that takes the jobs in."""
    if rows := [row for event in events if isinstance(event, Submitted) for row in _rows(event)]:
        connection.execute(_INSERT, rows)


def _rows(event: Submitted) -> Iterable[dict[str, Any]]:
    spec = event.specs[0] if event.specs else None  # the tasks of an array have the same one
    if spec and spec.environment and event.env:
        size, body = spec.environment.bytes, to_json(event.env).decode()
        yield {"id": spec.environment.id, "user": spec.user, "bytes": size, "body": body}


def read(connection: Connection, environment: Environment) -> Env:
    body = connection.scalar(_BODY, {"wanted": environment.id})
    if body is None:
        raise CarmaError("the job's environment is not kept any more", "Submit the job again.")
    return tuple((name, value) for name, value in from_json(body))


def forget_unused(connection: Connection, user: str | None = None) -> None:
    """Those of no job that is still known; `user`: only theirs."""
    if user is None:
        connection.execute(_DELETE_UNUSED)
    else:
        connection.execute(_DELETE_UNUSED_OF, {"name": user})
