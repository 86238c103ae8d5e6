"""The store: every job, what happened to it and why, in one SQLite file.

Any thread may call it; the one connection makes them take turns. Writing raises `StoreFull` when
the disk has no room, and then nothing of that write is kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Select,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.sqlite import insert

from carmad.config import Retention
from carmad.core.decision import Decision
from carmad.core.history import BIN_S, BINS, RUNS, Submission, past
from carmad.core.ledger import ENDED_REMEMBERED
from carmad.core.messages import Drain, Event, Sampled, Step, Tick
from carmad.core.types import (
    ENDED,
    Environment,
    GpuId,
    GpuSample,
    Job,
    JobId,
    JobSpec,
    JobState,
)
from carmad.errors import CarmaError
from carmad.store import backups, codec, environments, migrate, retention, statistics
from carmad.store.damage import Damage, expect, expect_live, set_aside, stand_in
from carmad.store.database import (
    DatabaseErrors,
    StoreFull,
    connect,
    damaged,
    expect_backed_up,
    explain,
)
from carmad.store.database import expect as expect_database
from carmad.store.tables import CLOCK, DECISIONS, DRAINS, EVENTS, JOBS, SAMPLES, TRANSITIONS
from carmad.store.values import (
    LoggedEvent,
    Purged,
    Remembered,
    Restored,
    Statistics,
    Transition,
)

R = TypeVar("R")
T = TypeVar("T")

__all__ = ["MAX_ID", "SqlStore", "StoreFull"]

MAX_ID = 10**12  # a thousand jobs a second for thirty years: no job has an id beyond

_LIVE = [state.value for state in JobState if state not in ENDED]
_MOST_READ = 64 << 20  # letters of jobs' bodies at a time
_VERSION_BYTES = 256  # what tells of a change of a job: an event, a transition
SET_S = 1.0  # a wall clock that is off by less was read at another moment, and not set

# SQLAlchemy compiles each of these once. Ids travel as one JSON list: an IN has a limit.
_GIVEN_IDS = select(func.json_each(bindparam("ids")).table_valued("value").c.value)
# AUTOINCREMENT's own memory, and the rows: it may be of a file that somebody has patched together.
_LAST_ID = text(
    "SELECT max(n) FROM (SELECT seq AS n FROM sqlite_sequence WHERE name = 'jobs'"
    " UNION ALL SELECT max(id) FROM jobs WHERE id < :below) WHERE n < :below"
)
_STATES = select(JOBS.c.id, JOBS.c.state).where(JOBS.c.id.in_(_GIVEN_IDS))
_JOB_ROWS = select(JOBS.c.id, JOBS.c.ended_at, JOBS.c.body)  # all that a job is made of
_GIVEN_JOBS = _JOB_ROWS.where(JOBS.c.id.in_(_GIVEN_IDS)).order_by(JOBS.c.id)
_LIVE_JOBS = _JOB_ROWS.where(JOBS.c.state.in_(_LIVE)).order_by(JOBS.c.id)
_INSERT_JOB = insert(JOBS)
_NEW = _INSERT_JOB.excluded
_UPSERT_JOB = _INSERT_JOB.on_conflict_do_update(
    index_elements=[JOBS.c.id],
    set_={column.name: column for column in _NEW if column.name != "id"}
    | {"bytes": func.max(JOBS.c.bytes, _NEW.bytes) + _VERSION_BYTES},
)
_INSERT_TRANSITION = insert(TRANSITIONS)
_INSERT_EVENT = insert(EVENTS)
_INSERT_DECISION = insert(DECISIONS)
_DELETE_DRAINS = delete(DRAINS)
_INSERT_DRAIN = insert(DRAINS)
_REPLACE_SAMPLE = insert(SAMPLES).prefix_with("OR REPLACE")
_SAMPLE_FIELDS = tuple(column.name for column in SAMPLES.c)

_Row = dict[str, Any]


class SqlStore:
    """`open` it once, `close` it last."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine
        self._step = 0  # number of the last commit
        self._readers = threading.Lock()
        self._written: set[str] = set()  # users, for `trim`
        self._last_read: tuple[str, environments.Env] | None = None  # tasks of an array share it
        self.damage = Damage()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Check and upgrade the database at `path`, or make it when there is none."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            expect_database(path)
            path.touch(mode=0o600)
            path.chmod(0o600)  # it holds the environments of everyone's jobs
        except OSError as error:
            raise CarmaError(f"cannot open the database {path}: {error.strerror}") from error
        store = cls(path, connect(path))
        try:
            store._check()
            store._migrate()
            store._step = store._last_step()
            store._written.update(store.users())
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._engine.dispose()

    # -- writing

    def commit(self, step: Step) -> None:
        """All of `step`, in one transaction; none at all when nothing in it is to be kept."""
        events = [event for event in step.events if not isinstance(event, (Sampled, Tick))]
        if not (events or step.jobs or step.decisions) and step.drains is None:
            return
        last = {job.id: job for job in step.jobs}
        job_rows = [_job_row(job) for job in last.values()]
        self._written.update(job.spec.user for job in last.values())
        event_rows = [_event_row(event) for event in events]
        decision_rows = [_decision_row(decision) for decision in step.decisions]
        with self._transaction() as connection:
            self._step += 1
            environments.keep(connection, events)
            if job_rows:
                states = connection.execute(_STATES, {"ids": json.dumps(list(last))})
                before = {row.id: row.state for row in states}
                connection.execute(_UPSERT_JOB, job_rows)
                when = {"at": step.events[-1].at, "step": self._step}
                if moves := [row | when for row in _moves(step, before)]:
                    connection.execute(_INSERT_TRANSITION, moves)
            if event_rows:
                connection.execute(
                    _INSERT_EVENT, [row | {"step": self._step} for row in event_rows]
                )
            if decision_rows:
                connection.execute(_INSERT_DECISION, decision_rows)
            if step.drains is not None:
                connection.execute(_DELETE_DRAINS)
                if step.drains:
                    connection.execute(_INSERT_DRAIN, [asdict(drain) for drain in step.drains])

    def record_samples(self, samples: Iterable[GpuSample]) -> None:
        """Averages over some time, one per GPU; processes and faults are not kept."""
        rows = [{name: getattr(sample, name) for name in _SAMPLE_FIELDS} for sample in samples]
        if rows:
            with self._transaction() as connection:
                connection.execute(_REPLACE_SAMPLE, rows)

    def keep_time(self, boot_id: str, ahead_s: float) -> float:
        """How far the daemon's clock is to be ahead of the time since that boot, in seconds.

        `ahead_s` is how far the wall clock is. If it was set since an earlier daemon of this boot
        read it, jobs that have not ended are given their instants anew, as if it had always shown
        what it shows now: so what has passed since stays the same. Else, and where there is no room
        to record that, the earlier daemon's time goes on.
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
                connection.execute(delete(CLOCK))
                connection.execute(insert(CLOCK).values(boot_id=boot_id, ahead_s=ahead_s))
        except StoreFull:
            return ahead_s if known is None else known
        return ahead_s

    def purge(self, now: float, keep: Retention) -> Purged:
        """Forget what is older than it need be kept. Jobs take their history with them."""
        return retention.purge(self._transaction, now, keep)

    def trim(self, keep: Retention) -> int:
        """Forget the oldest ended jobs of those users, of whom anything has been written since
        the last call, that take more than they may; how many."""
        users, self._written = self._written, set()
        most = keep.mib_per_user << 20
        return sum(retention.trim(self._transaction, user, most) for user in users)

    def backup(self, keep: int) -> Path:
        """A copy in `backups/` beside the database; only the newest `keep` stay there."""
        copy = self._copy()
        backups.prune(self.path.parent, keep)
        return copy

    def last_id_backed_up(self) -> JobId:
        """0: there is no backup, or none of any job."""
        return JobId(backups.last_id(self.path.parent))

    def copy_to(self, path: Path) -> None:
        """A copy for another process to read, as nobody else can read this one."""
        with self._explained():
            backups.copy(self._engine, path)

    # -- reading

    def restore(self) -> Restored:
        live = (
            select(JOBS)
            .where(or_(JOBS.c.state.in_(_LIVE), JOBS.c.ended_at.is_(None)))
            .order_by(JOBS.c.id)
        )
        ended = (
            select(JOBS.c.id, JOBS.c.state)
            .where(JOBS.c.ended_at.is_not(None), JOBS.c.state.in_(ENDED))
            .order_by(JOBS.c.ended_at.desc(), JOBS.c.id.desc())
            .limit(ENDED_REMEMBERED)
        )
        with self._transaction() as connection:
            jobs = [dict(row) for row in connection.execute(live).mappings()]
            ends = connection.execute(ended).all()
            by_gpu = connection.execute(select(DRAINS).order_by(DRAINS.c.gpu)).mappings()
            drains = [dict(row) for row in by_gpu]
            last_id = connection.scalar(_LAST_ID, {"below": MAX_ID}) or 0
        return Restored(
            jobs=tuple(map(self._live, jobs)),
            ended=tuple((JobId(row.id), JobState(row.state)) for row in reversed(ends)),
            drains=tuple(map(self._drain, drains)),
            next_id=JobId(last_id + 1),
        )

    def past(self, now: float) -> Remembered:
        """What the core's history is made of."""
        latest = (
            _JOB_ROWS.where(JOBS.c.ended_at.is_not(None), JOBS.c.started_at.is_not(None))
            .order_by(JOBS.c.ended_at.desc(), JOBS.c.id.desc())
            .limit(RUNS)
        )
        with self._reading() as connection:  # one by one: a body has a whole environment
            rows = connection.execution_options(yield_per=100).execute(latest)
            ended = [past(job) for job in self._decoded(rows)]
        runs = tuple(run for run in reversed(ended) if run is not None)
        return Remembered(runs, tuple(self.submissions(now - BINS * BIN_S)))

    def submissions(self, since: float = 0.0) -> list[Submission]:
        """In order, from the last one before `since` on: so the quiet is told from the unknown."""
        before = select(func.max(JOBS.c.submitted_at)).where(JOBS.c.submitted_at < since)
        valid = func.json_valid(JOBS.c.body)
        gpus = case((valid, func.json_extract(JOBS.c.body, "$.spec.gpus")))
        query = (
            select(JOBS.c.submitted_at, gpus)
            .where(JOBS.c.submitted_at >= func.coalesce(before.scalar_subquery(), since))
            .order_by(JOBS.c.submitted_at)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return [(at, gpus) for at, gpus in rows if isinstance(at, float) and isinstance(gpus, int)]

    def whole(self, spec: JobSpec) -> JobSpec:
        """With all of its environment. Raises CarmaError where that is not kept any more."""
        named = spec.environment
        return spec if named is None else replace(spec, env=self._environment(named))

    def job(self, job_id: JobId) -> Job | None:
        """Raises CarmaError for one whose row cannot be read."""
        found = next(iter(self.jobs([job_id])), None)
        if found is None and self.existing([job_id]):
            raise CarmaError(
                f"the record of job {job_id} is damaged", "The log of carmad says how."
            )
        return found

    def jobs(self, ids: Collection[JobId]) -> list[Job]:
        """Those of them that there are, in id order."""
        return self._read_jobs(_GIVEN_JOBS, {"ids": json.dumps(list(ids))})

    def existing(self, ids: Collection[JobId]) -> set[JobId]:
        """Those of them that have a row."""
        with self._reading() as connection:
            rows = connection.execute(_STATES, {"ids": json.dumps(list(ids))}).all()
        return {JobId(row.id) for row in rows}

    def users(self) -> list[str]:
        """Whose jobs there are."""
        with self._reading() as connection:
            users = connection.scalars(select(JOBS.c.user).distinct()).all()
        return [user for user in users if isinstance(user, str)]

    def history(
        self,
        *,
        user: str | None = None,
        since: float | None = None,
        until: float | None = None,
        states: Collection[JobState] | None = None,
        array: JobId | None = None,
        index: int | None = None,
        before: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """The newest jobs first, of those that existed at some time in `since` ≤ t < `until`.

        `before`: only those submitted before this one, to go on where a limit cut the last answer:
        it may be cut sooner, too, where commands are very long.
        """
        query = _JOB_ROWS.order_by(JOBS.c.id.desc()).limit(limit)
        if user is not None:
            query = query.where(JOBS.c.user == user)
        if since is not None:
            query = query.where(or_(JOBS.c.ended_at.is_(None), JOBS.c.ended_at >= since))
        if until is not None:
            query = query.where(JOBS.c.submitted_at < until)
        if states is not None:
            query = query.where(JOBS.c.state.in_([state.value for state in states]))
        if array is not None:
            query = query.where(JOBS.c.array == array)
        if index is not None:
            query = query.where(func.json_extract(JOBS.c.body, "$.spec.array.index") == index)
        if before is not None:
            query = query.where(JOBS.c.id < before)
        return self._read_jobs(query, {})

    def decisions(self, job_id: JobId, limit: int) -> list[Decision]:
        """The newest first."""
        query = (
            select(DECISIONS.c.id, DECISIONS.c.body)
            .where(DECISIONS.c.job == job_id)
            .order_by(DECISIONS.c.id.desc())
            .limit(limit)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return list(
            self._readable(
                rows,
                lambda row: codec.decode_decision(row.body),
                lambda row: f"decision {row.id} on job {job_id}",
            )
        )

    def transitions(self, job_id: JobId) -> list[Transition]:
        """Every change of the job's state, in order."""
        query = select(TRANSITIONS).where(TRANSITIONS.c.job == job_id).order_by(TRANSITIONS.c.id)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return list(
            self._readable(rows, _transition, lambda row: f"transition {row.id} of job {job_id}")
        )

    def events(self, since: float, limit: int) -> list[LoggedEvent]:
        """The newest first."""
        query = (
            select(EVENTS)
            .where(EVENTS.c.at >= since)
            .order_by(EVENTS.c.at.desc(), EVENTS.c.id.desc())
            .limit(limit)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return list(
            self._readable(
                rows,
                lambda row: LoggedEvent(row.at, row.type, codec.decode_event_body(row.body)),
                lambda row: f"event {row.id}",
            )
        )

    def samples(self, since: float) -> list[GpuSample]:
        """In order of time."""
        query = select(SAMPLES).where(SAMPLES.c.at >= since).order_by(SAMPLES.c.at)
        with self._reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return list(
            self._readable(
                rows, codec.sample_of, lambda row: f"a sample of GPU {row['gpu']} at {row['at']}"
            )
        )

    def totals(self, since: float, user: str | None = None) -> Statistics:
        """Sums over the jobs that ended from `since` on."""
        with self._reading() as connection:
            rows = connection.execute(statistics.query(since, user)).all()
        return statistics.summarise(rows)

    # -- within

    def _environment(self, named: Environment) -> environments.Env:
        last = self._last_read
        if last is None or last[0] != named.id:
            with self._transaction() as connection:  # no `_reading`: a launch waits for no listing
                last = self._last_read = named.id, environments.read(connection, named)
        return last[1]

    def _shift(self, connection: Connection, by_s: float) -> None:
        live = self._decoded(connection.execute(_LIVE_JOBS).all())
        if rows := [_job_row(job.shifted(by_s)) for job in live]:
            connection.execute(_UPSERT_JOB, rows)

    def _read_jobs(self, query: Select[Any], values: Mapping[str, str]) -> list[Job]:
        """As many as `_MOST_READ` allows: a command may be long, and a listing have 10,000."""
        with self._readers:  # decoding takes the longest
            with self._transaction() as connection:
                rows: list[Row[Any]] = []
                left = _MOST_READ
                for row in connection.execute(query.execution_options(yield_per=100), values):
                    left -= len(row.body)
                    if left < 0 and rows:
                        break
                    rows.append(row)
            return list(self._decoded(rows))

    def _decoded(self, rows: Iterable[Any]) -> Iterator[Job]:
        """The jobs of `_JOB_ROWS`."""
        return self._readable(rows, _job, lambda row: f"job {row.id}")

    def _readable(
        self, rows: Iterable[R], decode: Callable[[R], T], name: Callable[[R], str]
    ) -> Iterator[T]:
        """Those that can be decoded; the others are named, and left out."""
        for row in rows:
            try:
                yield decode(row)
            except (ValueError, TypeError) as error:  # ValueError: pydantic's own, too
                self.damage.note(name(row), error)

    def _live(self, row: _Row) -> Job:
        """A job that has not ended, or one that stands in for it."""
        try:
            return expect_live(codec.decode_job(row["body"]), row["id"])
        except (ValueError, TypeError) as error:
            set_aside(self.path.parent, row, error)
            return stand_in(row)

    def _drain(self, row: _Row) -> Drain:
        """Whatever it says, this GPU is to take no job."""
        try:
            return codec.drain_of(row)
        except ValueError as error:
            self.damage.note(f"the drain of GPU {row['gpu']}", error)
            return Drain(GpuId(str(row["gpu"])), "its drain's record is damaged", "carmad", 0.0)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One reader at a time, so that the core, which writes, waits behind one and not all."""
        with self._readers, self._transaction() as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._explained(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DatabaseErrors as error:
            if explained := explain(error, self.path):
                raise explained from error
            raise

    def _check(self) -> None:
        with self._transaction() as connection:
            verdict = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
        if verdict != "ok":
            raise damaged(self.path, verdict)

    def _migrate(self) -> None:
        with self._transaction() as connection:
            current = migrate.revision(connection)
        if not migrate.pending(current):
            return
        if current is None:
            expect_backed_up(self.path)
        else:
            self._copy()
        # Copying a table drops the old one, which would take the rows that refer to it along.
        self._set_foreign_keys("OFF")
        with self._transaction() as connection:
            migrate.upgrade(connection)
            broken = connection.execute(text("PRAGMA foreign_key_check")).first()
            if broken is not None:
                raise CarmaError(f"upgrading {self.path} broke a reference: {broken}")
        self._set_foreign_keys("ON")

    def _set_foreign_keys(self, mode: str) -> None:
        """Outside any transaction: inside one, SQLite ignores it."""
        with closing(self._engine.raw_connection()) as connection:
            connection.cursor().execute(f"PRAGMA foreign_keys = {mode}")

    def _copy(self) -> Path:
        with self._explained():
            return backups.make(self._engine, self.path.parent)

    def _last_step(self) -> int:
        with self._transaction() as connection:
            return max(
                connection.scalar(select(func.max(table.c.step))) or 0
                for table in (TRANSITIONS, EVENTS)
            )


def _job(row: Any) -> Job:
    return expect(codec.decode_job(row.body), row.id, ended=row.ended_at is not None)


def _transition(row: Any) -> Transition:
    before = None if row.before is None else JobState(row.before)
    return Transition(row.at, JobId(row.job), before, JobState(row.after), row.attempt)


def _job_row(job: Job) -> _Row:
    body = codec.encode_job(job)
    return {
        "id": job.id,
        "state": job.state.value,
        "user": job.spec.user,
        "name": job.spec.name,
        "array": job.spec.array.array if job.spec.array else None,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at if job.ended else None,
        "attempt": job.attempt,
        "gpus": ",".join(job.gpus),
        "cause": job.exit.cause.value if job.exit else None,
        "gpu_seconds": job.usage.gpu_seconds,
        "energy_j": job.usage.energy_j,
        "body": body,
        "environment": job.spec.environment.id if job.spec.environment else None,
        "bytes": len(body),
    }


def _event_row(event: Event) -> _Row:
    return {"at": event.at, "type": type(event).__name__, "body": codec.encode_event(event)}


def _decision_row(decision: Decision) -> _Row:
    return {
        "at": decision.at,
        "job": decision.placement.job,
        "policy": decision.policy,
        "body": codec.encode_decision(decision),
    }


def _moves(step: Step, states: dict[JobId, str]) -> Iterator[_Row]:
    """A row for each change of state, of each version of each job. Leaves `states` updated."""
    for job in step.jobs:
        before, after = states.get(job.id), job.state.value
        if before != after:
            yield {"job": job.id, "before": before, "after": after, "attempt": job.attempt}
        states[job.id] = after
