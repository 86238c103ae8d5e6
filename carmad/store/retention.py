"""What is kept beside the rows of jobs, and when it is deleted: environments and scripts, metrics,
external processes, and jobs that ended long ago or are too many.

Environments and scripts are private, so they are only in the database, which root alone can read,
and in memory only while a job is launched or estimated. Each kind has a table of its own; equal
ones of a user are stored once. What looks like a secret is elsewhere: `carmad.store.secrets`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from hashlib import blake2b
from secrets import token_bytes
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import BindParameter, Connection, Table, bindparam, delete, func, select, tuple_
from sqlalchemy.dialects.sqlite import insert

from carmad.config import Retention
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.recurrence import telling_variables
from carmad.core.jobs.spec import Environment, JobSpec, Script, Secrets
from carmad.core.messages import Event, Measured, RequeueRequested, Submitted
from carmad.errors import CarmaError
from carmad.store.secrets import Variables, split
from carmad.store.tables import ENVIRONMENTS, EXTERNALS, GIVEN_IDS, JOBS, METRICS, SCRIPTS
from carmad.store.values import External, ExternalTotals

_DIGEST_BYTES = 20
_KINDS = ((ENVIRONMENTS, JOBS.c.environment), (SCRIPTS, JOBS.c.script))


# The ids of secrets stay in the database: without it, a weak password could be found by trying.
_KEY = token_bytes(32)


def without_contents(spec: JobSpec) -> JobSpec:
    """The spec as the core and its row have it: with references in place of its environment and
    its script."""
    if spec.env:
        plain, secret = split(spec.env)
        body = to_json(plain)
        environment = Environment(_digest(spec.uid, body), len(body))
        spec = replace(spec, env=telling_variables(plain), environment=environment)
        if secret:
            spec = with_secrets(spec, secret, tuple(name for name, _ in secret))
    if spec.script:
        body = spec.script.text.encode()
        script = Script(_digest(spec.uid, body), len(body), spec.script.word)
        spec = replace(spec, script=script)
    return spec


def with_secrets(spec: JobSpec, variables: Variables, names: tuple[str, ...]) -> JobSpec:
    """The spec with a reference to these variables. `names`: all that it should have."""
    assert spec.environment  # only jobs with the same one share secrets
    body = to_json(variables)
    id = _digest(spec.uid, spec.environment.id.encode() + body, _KEY)
    return replace(spec, secrets=Secrets(id, names, len(body)))


def _digest(uid: int, body: bytes, key: bytes = b"") -> str:
    # Users do not share equal ones: each counts against its user's quota.
    return blake2b(b"%d " % uid + body, digest_size=_DIGEST_BYTES, key=key).hexdigest()


def keep_contents(connection: Connection, events: Iterable[Event]) -> None:
    """Store what new jobs bring, in the transaction that adds the jobs."""
    for event in events:
        if isinstance(event, Submitted) and event.specs:
            spec = event.specs[0]  # all tasks of an array share one
            if event.env:
                plain = to_json(split(event.env)[0]).decode()
                _keep(connection, ENVIRONMENTS, spec, spec.environment, plain)
            if event.script:
                _keep(connection, SCRIPTS, spec, spec.script, event.script)


def new_secrets(events: Iterable[Event]) -> Iterator[tuple[JobSpec, Variables]]:
    """Secrets that jobs bring, each with a spec that refers to them."""
    for event in events:
        if isinstance(event, Submitted) and event.specs and event.specs[0].secrets:
            if secret := split(event.env)[1]:
                yield event.specs[0], secret
        elif isinstance(event, RequeueRequested) and event.secrets:
            yield event.job.spec, event.secrets


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


def with_contents(connection: Connection, spec: JobSpec) -> JobSpec:
    """The spec with its complete environment and script. Raises CarmaError if they are no longer
    stored."""
    changes: dict[str, Any] = {}
    if spec.environment:
        body = _read_content(connection, ENVIRONMENTS, spec.environment.id)
        changes["env"] = tuple((name, value) for name, value in from_json(body))
    if spec.script:
        text = _read_content(connection, SCRIPTS, spec.script.id)
        changes["script"] = replace(spec.script, text=text)
    return replace(spec, **changes)


def _read_content(connection: Connection, table: Table, id: str) -> str:
    body: str | None = connection.scalar(select(table.c.body).where(table.c.id == id))
    if body is None:
        what = table.name.removesuffix("s")
        raise CarmaError(f"the job's {what} is no longer stored", "Submit the job again.")
    return body


def forget_unused_contents(connection: Connection, user: str | None = None) -> None:
    """Delete what no stored job uses; `user`: only this user's."""
    for table, used in _KINDS:
        unused = delete(table).where(~select(JOBS.c.id).where(used == table.c.id).exists())
        if user is None:
            connection.execute(unused)
        else:
            connection.execute(unused.where(table.c.user == bindparam("name")), {"name": user})


MOST_REPORTS = 1000  # of a metric of a job; beyond, every other one is forgotten

_REPORT = insert(METRICS).prefix_with("OR REPLACE")
_REPORTS = (METRICS.c.job == bindparam("of"), METRICS.c.name == bindparam("called"))
_COUNT = select(func.count()).where(*_REPORTS)
_NUMBERED = (
    select(METRICS.c.at, func.row_number().over(order_by=METRICS.c.at).label("number"))
    .where(*_REPORTS)
    .subquery()
)
_THIN = delete(METRICS).where(
    *_REPORTS, METRICS.c.at.in_(select(_NUMBERED.c.at).where(_NUMBERED.c.number % 2 == 0))
)


def keep_metrics(connection: Connection, events: Iterable[Event], known: Container[JobId]) -> None:
    """Store what jobs report of themselves, if they are among those that are `known`."""
    for event in events:
        if isinstance(event, Measured) and event.job in known:
            for name, value in event.metrics:
                row = {"job": event.job, "name": name, "at": event.at, "value": value}
                connection.execute(_REPORT, row)
                its = {"of": event.job, "called": name}
                if (connection.scalar(_COUNT, its) or 0) > MOST_REPORTS:
                    connection.execute(_THIN, its)


KEPT_PER_USER = 1000
SHOWN = 100

_INSERT_EXTERNAL = insert(EXTERNALS)
_SEEN, _ITS = _INSERT_EXTERNAL.excluded, EXTERNALS.c
_UPSERT_EXTERNAL = _INSERT_EXTERNAL.on_conflict_do_update(
    index_elements=[_ITS.gpu, _ITS.pid, _ITS.started_at],
    set_={
        "seen_to": _SEEN.seen_to,
        "peak_mib": func.max(
            func.coalesce(_ITS.peak_mib, _SEEN.peak_mib),
            func.coalesce(_SEEN.peak_mib, _ITS.peak_mib),
        ),
    },
)
_EXTERNAL = (_ITS.gpu, _ITS.pid, _ITS.started_at)
_RANKED = select(
    *_EXTERNAL,
    func.row_number().over(partition_by=_ITS.user, order_by=_ITS.seen_to.desc()).label("place"),
).subquery()
_SURPLUS = select(_RANKED.c.gpu, _RANKED.c.pid, _RANKED.c.started_at).where(
    _RANKED.c.place > KEPT_PER_USER
)


def record_externals(connection: Connection, found: Sequence[External]) -> None:
    """Add processes, or what has become of those that are known."""
    connection.execute(_UPSERT_EXTERNAL, [asdict(one) for one in found])


def forget_externals(connection: Connection, before: float) -> None:
    """Delete those that were last seen before that, and each user's oldest if there are many."""
    connection.execute(delete(EXTERNALS).where(_ITS.seen_to < before))
    connection.execute(delete(EXTERNALS).where(tuple_(*_EXTERNAL).in_(_SURPLUS)))


def latest_externals(
    connection: Connection, since: float, user: str | None
) -> tuple[External, ...]:
    """Those seen since `since`, the most recently seen first."""
    query = select(EXTERNALS).where(_ITS.seen_to >= since).order_by(_ITS.seen_to.desc())
    if user is not None:
        query = query.where(_ITS.user == user)
    return tuple(External(**row) for row in connection.execute(query.limit(SHOWN)).mappings())


def total_externals(
    connection: Connection, since: float, user: str | None, until: float | None = None
) -> tuple[ExternalTotals, ...]:
    """Per user, of what was there in `since` ≤ t < `until`; only the time in between counts."""
    begin = func.max(_ITS.seen_from, since)
    end = _ITS.seen_to if until is None else func.min(_ITS.seen_to, until)
    query = (
        select(_ITS.user, func.count(), func.sum(end - begin) / 3600, func.max(_ITS.peak_mib))
        .where(_ITS.seen_to >= since)
        .group_by(_ITS.user)
        .order_by(_ITS.user)
    )
    if user is not None:
        query = query.where(_ITS.user == user)
    if until is not None:
        query = query.where(_ITS.seen_from < until)
    return tuple(ExternalTotals(*row) for row in connection.execute(query))


Transaction = Callable[[], AbstractContextManager[Connection]]

CHUNK = 500  # jobs deleted per transaction, so that commits can go in between
DAY = 86_400.0

_USER: BindParameter[str] = bindparam("name")
_GIVEN = delete(JOBS).where(JOBS.c.id.in_(GIVEN_IDS))
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


def purge_jobs(transaction: Transaction, now: float, retention: Retention) -> int:
    """Delete jobs, with their history, that have been kept for long enough; how many."""
    before = {"before": now - retention.ended_days * DAY}
    jobs, chunk = 0, CHUNK
    while chunk == CHUNK:
        with transaction() as connection:
            ids = connection.scalars(_OLD, before).all()
            chunk = connection.execute(_GIVEN, {"ids": json.dumps(list(ids))}).rowcount
        jobs += chunk
    with transaction() as connection:
        forget_unused_contents(connection)
        forget_externals(connection, before["before"])
    return jobs


def trim_jobs(transaction: Transaction, user: str, most_bytes: int) -> int:
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
        forget_unused_contents(connection, user)
    return len(ids)
