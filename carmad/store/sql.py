"""The store: every job, what happened to it and why, in one SQLite file.

Thread-safe: threads take turns with its one connection. Writing raises `StoreFull` when the disk is
full, and then writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects.sqlite import Insert, dialect, insert

from carmad.config import Retention
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import ENDED
from carmad.core.jobs.tasks import part
from carmad.core.messages import Event, Step
from carmad.core.rules.share import Account
from carmad.errors import CarmaError
from carmad.store import codec, database, retention
from carmad.store.codec import decision_row, job_of, job_row, moves, notice_rows
from carmad.store.database import StoreFull, connect, damage, expect_backed_up, expect_database
from carmad.store.reading import LIVE_JOBS, Reader
from carmad.store.tables import (
    ACCOUNTS,
    CLOCK,
    DECISIONS,
    DRAINS,
    GIVEN_IDS,
    JOBS,
    LIMITS,
    NOTICES,
    RESERVATIONS,
    TRANSITIONS,
)
from carmad.store.values import External

# -- tasks of an array that wait alike are one row (`core.jobs.tasks`); one that gets a row of its
# own keeps the past that they shared

_STANDING = text(
    "SELECT value AS id, jobs.id AS row, jobs.state, jobs.tasks FROM json_each(:ids)"
    " JOIN jobs ON jobs.id = (SELECT max(id) FROM jobs WHERE id <= value)"
    " WHERE jobs.id + jobs.tasks > value"
)
_ROWS = text("SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))")
_COPY_PAST = text(
    "INSERT INTO transitions (at, job, before, after, attempt) SELECT"
    " at, :id, before, after, attempt FROM transitions WHERE job = :row ORDER BY id"
)
_TAKE_IDS = text("UPDATE sqlite_sequence SET seq = :last WHERE name = 'jobs' AND seq < :last")

Rows = dict[JobId, JobId]  # which one each is a part of


def _standing(
    connection: Connection, jobs: Mapping[JobId, Job]
) -> tuple[dict[JobId, str], Rows, list[Job]]:
    """Before `jobs` are written: the states of those that are known, which of them another row
    stands for, and the rest of such rows, if the core does not know it: tasks that have ended."""
    found = connection.execute(_STANDING, {"ids": json.dumps(list(jobs))}).all()
    states = {JobId(each.id): str(each.state) for each in found}
    rows = {JobId(each.id): JobId(each.row) for each in found if each.id != each.row}
    ended = {each.row for each in found if each.tasks > 1 and each.state in ENDED}
    rest: list[Job] = []
    if ended:
        for row in connection.execute(_ROWS, {"ids": json.dumps(list(ended))}).all():
            whole = job_of(row)
            taken = (jobs[id].ids for id in sorted(jobs) if id in whole.ids)
            rest += [part(whole, ids) for ids in _without(whole.ids, taken)]
            rows |= {each.id: whole.id for each in rest if each.id != whole.id}
    return states, rows, rest


def _without(ids: range, taken: Iterable[range]) -> Iterator[range]:
    """The parts of `ids` outside the ranges in `taken`, which are sorted."""
    start = ids.start
    for each in taken:
        if start < each.start:
            yield range(start, each.start)
        start = max(start, each.stop)
    if start < ids.stop:
        yield range(start, ids.stop)


def _share_past(connection: Connection, rows: Rows) -> None:
    """After the rows were written, and before what is new of them."""
    if rows:
        connection.execute(_COPY_PAST, [{"id": id, "row": row} for id, row in rows.items()])


def _take_ids(connection: Connection, jobs: Iterable[Job]) -> None:
    """No other job gets the ids of the tasks that have no row yet."""
    if last := max((job.ids[-1] for job in jobs if job.tasks > 1), default=0):
        connection.execute(_TAKE_IDS, {"last": last})


_SECRETS = "CASE WHEN json_valid(body) THEN json_extract(body, '$.spec.secrets.id') END"
_NEEDED = text(f"SELECT DISTINCT {_SECRETS} FROM jobs WHERE ended_at IS NULL")
# The newest of the jobs with one environment have ended last.
_NEEDS = text(
    f"SELECT 1 FROM jobs WHERE environment = :environment AND ended_at IS NULL"
    f" AND {_SECRETS} = :id ORDER BY id DESC LIMIT 1"
)

_VERSION_BYTES = 256  # disk space for the rows that record a change of a job
SET_S = 1.0  # a smaller difference of the wall clock does not count as a change


def _for_driver(statement: Insert, columns: Iterable[str]) -> str:
    """The SQL of an insertion, for the driver itself: SQLAlchemy would process each row first."""
    return str(statement.compile(dialect=dialect(paramstyle="named"), column_keys=list(columns)))


_INSERT_JOB = insert(JOBS)
_NEW = _INSERT_JOB.excluded
# To set them is to rewrite their indexes.
_FIXED = ("id", "user", "uid", "array", "environment", "script")
_UPSERT_JOBS = _for_driver(
    _INSERT_JOB.on_conflict_do_update(
        index_elements=[JOBS.c.id],
        set_={column.name: column for column in _NEW if column.name not in _FIXED}
        | {"bytes": func.max(JOBS.c.bytes, _NEW.bytes) + literal_column(str(_VERSION_BYTES))},
    ),
    JOBS.c.keys(),
)
_INSERT_TRANSITIONS = _for_driver(
    insert(TRANSITIONS), (column.name for column in TRANSITIONS.c if not column.primary_key)
)
_SHIFT_TRANSITIONS = (
    update(TRANSITIONS)
    .where(TRANSITIONS.c.job.in_(GIVEN_IDS))
    .values(at=TRANSITIONS.c.at + bindparam("by_s"))
)
_INSERT_NOTICE = insert(NOTICES)
_DELETE_NOTICES = delete(NOTICES).where(NOTICES.c.id.in_(GIVEN_IDS))
_INSERT_DECISION = insert(DECISIONS)
_REPLACE_ACCOUNT = insert(ACCOUNTS).prefix_with("OR REPLACE")
_INSERT_LIMIT = insert(LIMITS)


def _replace_all(connection: Connection, table: Table, rows: list[codec.Row]) -> None:
    connection.execute(delete(table))
    if rows:
        connection.execute(insert(table), rows)


class SqlStore(Reader):
    """`open` it once, `close` it last."""

    def __init__(self, path: Path, engine: Engine) -> None:
        super().__init__(path, engine)
        self._written: set[str] = set()  # users, for `trim`
        # Secrets that no job may need any more, with their environment.
        self._loose: dict[str, str] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Check the database at `path`, or create it if there is none."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            expect_database(path)
            path.touch(mode=0o600)
            path.chmod(0o600)  # it contains the environments of everyone's jobs
        except OSError as error:
            raise CarmaError(f"cannot open the database {path}: {error.strerror}") from error
        store = cls(path, connect(path))
        try:
            store._expect_intact()
            store._create_tables()
            store._written.update(store.users())
            store._forget_secrets()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._engine.dispose()

    # -- writing

    def commit(self, step: Step) -> None:
        """Write `step` in one transaction; without one if there is nothing to write."""
        if not step.to_write:
            return
        last = {job.id: job for job in step.jobs}
        self._written.update(job.spec.user for job in last.values())
        decision_rows = [decision_row(decision) for decision in step.decisions]
        self._keep_secrets(step.events, last.values())
        with self._transaction() as connection:
            retention.keep_contents(connection, step.events)
            if last:
                states, divided, rest = _standing(connection, last)
                written = [job_row(job) for job in (*last.values(), *rest)]
                connection.exec_driver_sql(_UPSERT_JOBS, written)
                _share_past(connection, divided)
                _take_ids(connection, last.values())
                retention.keep_metrics(connection, step.events, last)
                when = {"at": step.events[-1].at}
                if notices := [*notice_rows(step)]:
                    connection.execute(_INSERT_NOTICE, notices)
                if moved := [row | when for row in moves(step, states)]:
                    connection.exec_driver_sql(_INSERT_TRANSITIONS, moved)
            if decision_rows:
                connection.execute(_INSERT_DECISION, decision_rows)
            self._keep(connection, step.accounts)
            if step.limits:
                rows = [{"subject": e.subject, "body": codec.encode(e)} for e in step.limits]
                connection.execute(_INSERT_LIMIT, rows)
            if step.drains is not None:
                _replace_all(connection, DRAINS, [asdict(drain) for drain in step.drains])
            if step.reservations is not None:
                kept = [{"id": e.id, "body": codec.encode(e)} for e in step.reservations]
                _replace_all(connection, RESERVATIONS, kept)
            pairs = [{"id": id, "environment": its} for id, its in self._loose.items()]
            unused = [one["id"] for one in pairs if not connection.scalar(_NEEDS, one)]
        if unused:
            self._last_read = None
            self._secrets.forget(unused)
        self._loose.clear()

    def _keep_secrets(self, events: Iterable[Event], jobs: Iterable[Job]) -> None:
        """Before the jobs that need them are written. Raises StoreFull."""
        live: set[str] = set()
        for job in jobs:
            if job.spec.secrets and job.spec.environment:
                live.add(job.spec.secrets.id)
                if job.ended:
                    self._loose[job.spec.secrets.id] = job.spec.environment.id
        for spec, variables in retention.new_secrets(events) if live else ():
            if spec.secrets and spec.environment and spec.secrets.id in live:
                live.remove(spec.secrets.id)  # tasks of an array share them
                self._loose[spec.secrets.id] = spec.environment.id  # if the commit fails
                self._secrets.keep(spec.secrets.id, variables)

    def _forget_secrets(self) -> None:
        """Those of jobs that have ended, and what a daemon that was killed has left."""
        with self._transaction() as connection:
            needed = set(connection.scalars(_NEEDED))
        self._secrets.forget_others(needed)

    def forget_notices(self, ids: Iterable[int]) -> None:
        """Their owners have been told, or cannot be."""
        with self._transaction() as connection:
            connection.execute(_DELETE_NOTICES, {"ids": json.dumps(list(ids))})

    def record_externals(self, found: Sequence[External]) -> None:
        if found:
            with self._transaction() as connection:
                retention.record_externals(connection, found)

    def keep_time(self, boot_id: str, ahead_s: float) -> float:
        """How far the daemon's clock should be ahead of the time since boot, in seconds.

        `ahead_s` is how far the wall clock is ahead. If it was changed since an earlier daemon of
        this boot read it, all times of jobs that have not ended are shifted by as much, so that
        elapsed times stay the same. Otherwise, or if the disk is full, the earlier daemon's time
        is kept.
        """
        with self._transaction() as connection:
            known: float | None = connection.scalar(
                select(CLOCK.c.ahead_s).where(CLOCK.c.boot_id == boot_id)
            )
        if known is not None and abs(ahead_s - known) < SET_S:
            return known
        try:
            with self._transaction() as connection:
                if known is not None:
                    self._shift(connection, ahead_s - known)
                else:  # the machine was off: nothing is known to have been used meanwhile
                    self._change_accounts(
                        connection,
                        lambda each: replace(each, rate=0.0, host_rate=0.0, urgent_rate=0.0),
                    )
                connection.execute(delete(CLOCK))
                connection.execute(insert(CLOCK).values(boot_id=boot_id, ahead_s=ahead_s))
        except StoreFull:
            return ahead_s if known is None else known
        return ahead_s

    def purge(self, now: float, keep: Retention) -> int:
        """Delete jobs, with their history, once kept for long enough; returns how many."""
        return retention.purge_jobs(self._transaction, now, keep)

    def trim(self, keep: Retention) -> int:
        """Delete the oldest ended jobs of users who exceed their disk quota; returns how many.
        Only users whose jobs have changed since the last call are checked."""
        forgotten = 0
        for user in tuple(self._written):  # the core adds to it meanwhile
            self._written.discard(user)
            try:
                forgotten += retention.trim_jobs(self._transaction, user, keep.mib_per_user << 20)
            except BaseException:
                self._written.add(user)  # the remaining users are still in the set
                raise
        return forgotten

    def backup(self, keep: int) -> Path:
        """Make a copy in `backups/` beside the database, and keep only the newest `keep`."""
        with self._explain():
            copy = database.back_up(self._engine, self.path.parent)
        database.prune_backups(self.path.parent, keep)
        return copy

    def last_id_backed_up(self) -> JobId:
        """The last job id in the newest readable backup; 0: there is none."""
        return JobId(database.last_id_backed_up(self.path.parent))

    def copy_to(self, path: Path) -> None:
        """Make a copy for another process, since no other process can read this one."""
        with self._explain():
            database.copy_database(self._engine, path)

    # -- internals

    def _shift(self, connection: Connection, by_s: float) -> None:
        live = self._decode(connection.execute(LIVE_JOBS).all())
        if rows := [job_row(job.shift(by_s)) for job in live]:
            connection.exec_driver_sql(_UPSERT_JOBS, rows)
            connection.execute(
                _SHIFT_TRANSITIONS, {"by_s": by_s, "ids": json.dumps([row["id"] for row in rows])}
            )
        self._change_accounts(connection, lambda each: each.shift(by_s))

    def _change_accounts(
        self, connection: Connection, change: Callable[[Account], Account]
    ) -> None:
        found = self._accounts(connection.execute(select(ACCOUNTS)).all())
        self._keep(connection, map(change, found))

    def _keep(self, connection: Connection, accounts: Iterable[Account]) -> None:
        rows = [
            {"user": each.user, "uid": each.uid, "body": codec.encode(each)} for each in accounts
        ]
        if rows:
            connection.execute(_REPLACE_ACCOUNT, rows)

    def _expect_intact(self) -> None:
        with self._transaction() as connection:
            verdict = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
        if verdict != "ok":
            raise damage(self.path, verdict)

    def _create_tables(self) -> None:
        with self._transaction() as connection:
            if database.has_tables(connection, self.path):
                return
        expect_backed_up(self.path)
        with self._transaction() as connection:
            database.create_tables(connection)
