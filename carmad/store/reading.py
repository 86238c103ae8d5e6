"""The store's read access: jobs and their history, from the tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Select, func, or_, select, text
from sqlalchemy import Row as Found
from sqlalchemy.sql.selectable import TextualSelect

from carmad.core.gpus.gpu import Drain
from carmad.core.gpus.sharing import JobSummary
from carmad.core.jobs.attempt import MAX_ID, GpuId, JobId
from carmad.core.jobs.history import BIN_S, BINS, RUNS, Submission, past
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import ENDED_REMEMBERED
from carmad.core.jobs.recurrence import command
from carmad.core.jobs.spec import JobSpec, Owner, Secrets
from carmad.core.jobs.states import ENDED, JobState
from carmad.core.jobs.tasks import JobsById, Outcome
from carmad.core.placing.decision import Decision
from carmad.core.rules.limits import Limit
from carmad.core.rules.share import Account
from carmad.store import codec, queries, retention
from carmad.store.codec import Row, job_of, transition_of
from carmad.store.damage import Damage, as_text, count_tasks, expect_live, is_text, stand_in
from carmad.store.database import DatabaseErrors, explain
from carmad.store.queries import Order, Search
from carmad.store.secrets import SecretFiles, Variables
from carmad.store.tables import (
    ACCOUNTS,
    DECISIONS,
    DRAINS,
    GIVEN_IDS,
    JOBS,
    LIMITS,
    METRICS,
    NOTICES,
    RESERVATIONS,
    TRANSITIONS,
)
from carmad.store.values import (
    External,
    ExternalTotals,
    Named,
    Notice,
    Remembered,
    Restored,
    Statistics,
    Transition,
)

R = TypeVar("R")
T = TypeVar("T")

_LIVE = [state.value for state in JobState if state not in ENDED]
_MOST_READ = 64 << 20  # characters of jobs' bodies at a time

# SQLAlchemy compiles each of these once.
# AUTOINCREMENT's counter and the rows, as somebody may have patched the file together.
_LAST_ID = text(
    "SELECT max(n) FROM (SELECT seq AS n FROM sqlite_sequence WHERE name = 'jobs'"
    " UNION ALL SELECT max(id) FROM jobs WHERE id < :below) WHERE n < :below"
)
_LIMIT_ROWS = select(LIMITS.c.id, LIMITS.c.subject, LIMITS.c.body)
_STATES = select(JOBS.c.id, JOBS.c.state).where(JOBS.c.id.in_(GIVEN_IDS))
# What a job is made of, and if its body is damaged, what stands in for it.
_JOB_COLUMNS = (
    *(JOBS.c.id, JOBS.c.state, JOBS.c.user, JOBS.c.uid, JOBS.c.name, JOBS.c.submitted_at),
    *(JOBS.c.started_at, JOBS.c.ended_at, JOBS.c.attempt, JOBS.c.gpus, JOBS.c.tasks, JOBS.c.body),
)
_NAMES = ", ".join(f"jobs.{column.name}" for column in _JOB_COLUMNS)
_JOB_ROWS = select(*_JOB_COLUMNS)
# Tasks of an array may be one row, which has the id of the first.
_ROW_OF = text(
    "(SELECT id FROM jobs WHERE id + tasks > :id"
    " AND id = (SELECT max(id) FROM jobs WHERE id <= :id))"
)
_GIVEN_ROWS = text(
    f"SELECT {_NAMES} FROM jobs WHERE id IN"
    " (SELECT (SELECT max(id) FROM jobs WHERE id <= value) FROM json_each(:ids)) ORDER BY id"
).columns(*_JOB_COLUMNS)
_ROWS_IN_ORDER = text(
    f"SELECT {_NAMES} FROM json_each(:ids) AS wanted"
    " JOIN jobs ON jobs.id = wanted.value ORDER BY wanted.key"
).columns(*_JOB_COLUMNS)
LIVE_JOBS = _JOB_ROWS.where(JOBS.c.state.in_(_LIVE)).order_by(JOBS.c.id)


class Reader:
    """Readers take turns with the one connection. Unreadable rows are recorded in `damage`."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self.damage = Damage()
        self._engine = engine
        self._readers = threading.Lock()
        # What `whole` read last: tasks of an array share it.
        self._last_read: tuple[tuple[object, ...], JobSpec] | None = None
        self._secrets = SecretFiles(path.parent)

    def restore(self) -> Restored:
        live = _JOB_ROWS.where(or_(JOBS.c.state.in_(_LIVE), JOBS.c.ended_at.is_(None)))
        ended = (
            select(JOBS.c.id, JOBS.c.state, JOBS.c.tasks)
            .where(JOBS.c.ended_at.is_not(None), JOBS.c.state.in_(ENDED))
            .order_by(JOBS.c.ended_at.desc(), JOBS.c.id.desc())
            .limit(ENDED_REMEMBERED)
        )
        with self._transaction() as connection:
            rows = connection.execute(live.order_by(JOBS.c.id)).all()
            ends = connection.execute(ended).all()[::-1]
            by_gpu = connection.execute(select(DRAINS).order_by(DRAINS.c.gpu)).mappings()
            drains = [dict(row) for row in by_gpu]
            accounts = connection.execute(select(ACCOUNTS).order_by(ACCOUNTS.c.user)).all()
            last = select(func.max(LIMITS.c.id)).group_by(LIMITS.c.subject)
            limits = connection.execute(_LIMIT_ROWS.where(LIMITS.c.id.in_(last))).all()
            kept = connection.execute(select(RESERVATIONS).order_by(RESERVATIONS.c.id)).all()
            last_id = connection.scalar(_LAST_ID, {"below": MAX_ID}) or 0
        return Restored(
            jobs=tuple(map(self._live, rows)),
            ended=tuple(
                Outcome(JobId(id), JobState(state), count_tasks(tasks)) for id, state, tasks in ends
            ),
            drains=tuple(map(self._drain, drains)),
            next_id=JobId(last_id + 1),
            accounts=tuple(self._accounts(accounts)),
            limits=tuple(limit for limit in self._limits(limits) if not limit.empty),
            reservations=tuple(self._bodies(kept, codec.decode_reservation, "reservation {0.id}")),
        )

    def past(self, now: float) -> Remembered:
        """What the core's history is built from."""
        latest = (
            _JOB_ROWS.where(JOBS.c.ended_at.is_not(None), JOBS.c.started_at.is_not(None))
            .order_by(JOBS.c.ended_at.desc(), JOBS.c.id.desc())
            .limit(RUNS)
        )
        with self._reading() as connection:  # one by one: a body has a whole environment
            rows = connection.execution_options(yield_per=100).execute(latest)
            ended = [past(job) for job in self._decode(rows)]
        runs = tuple(run for run in reversed(ended) if run is not None)
        return Remembered(runs, tuple(self.submissions(now - BINS * BIN_S)))

    def submissions(self, since: float = 0.0) -> list[Submission]:
        """In order, beginning with the last one before `since`, which shows that recording began
        earlier."""
        before = select(func.max(JOBS.c.submitted_at)).where(JOBS.c.submitted_at < since)
        query = (
            select(JOBS.c.submitted_at, queries.in_body("$.spec.gpus"), JOBS.c.tasks)
            .where(JOBS.c.submitted_at >= func.coalesce(before.scalar_subquery(), since))
            .order_by(JOBS.c.submitted_at)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return [
            Submission(at, gpus * count_tasks(tasks), count_tasks(tasks))
            for at, gpus, tasks in rows
            if isinstance(at, float) and isinstance(gpus, int)
        ]

    def whole(self, spec: JobSpec) -> JobSpec:
        """The spec as it runs: with its complete environment and script, and the command of its
        task of a sweep. Raises CarmaError if they are no longer stored; see `JobSpec.lacking` for
        secrets."""
        spec = replace(spec, argv=command(spec))
        key = spec.environment, spec.script, spec.secrets
        if not any(key):
            return spec
        last = self._last_read
        if last is None or last[0] != key:
            with self._transaction() as connection:  # not `_reading`: launches skip that queue
                found = retention.with_contents(connection, spec)
            if spec.secrets:
                found = replace(found, env=found.env + self.secrets(spec.secrets))
            last = key, found
            if not found.lacking:  # they may be there again the next time
                self._last_read = last
        return replace(spec, env=last[1].env, script=last[1].script)

    def secrets(self, its: Secrets) -> Variables:
        """Those that are still stored."""
        return tuple((name, value) for name, value in self._secrets.read(its.id) or ())

    def job(self, job_id: JobId) -> Job | None:
        return next(iter(self.jobs([job_id])), None)

    def jobs(self, ids: Collection[JobId]) -> list[Job]:
        """Those that exist, in id order."""
        found = JobsById(self.rows(ids))
        return [found[id] for id in sorted(set(ids)) if id in found]

    def rows(self, ids: Collection[JobId]) -> list[Job]:
        """The rows that hold these jobs, in id order; a row may hold more tasks of an array."""
        return self._read_jobs(_GIVEN_ROWS, {"ids": json.dumps(list(ids))})

    def to_tell(self) -> list[Owner]:
        """The users for whom there are notices, the one who waits longest first."""
        whose = NOTICES.c.uid, JOBS.c.user
        query = select(*whose).join(JOBS).group_by(*whose).order_by(func.min(NOTICES.c.id))
        with self._reading() as connection:
            return [Owner(*row) for row in connection.execute(query).all()]

    def notices(self, owner: Owner, limit: int) -> list[Notice]:
        """A user's, in order."""
        its = (NOTICES.c.id, NOTICES.c.job, NOTICES.c.at, NOTICES.c.what, NOTICES.c.words)
        query = select(*its).join(JOBS).order_by(NOTICES.c.id).limit(limit)
        query = query.where(NOTICES.c.uid == owner.uid, JOBS.c.user == owner.user)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return [Notice(*row) for row in rows]

    def name_jobs(self, ids: Collection[JobId]) -> dict[JobId, Named]:
        """Those that exist."""
        with self._reading() as connection:
            return queries.read_names(connection, ids)

    def tasks(self, array: JobId) -> dict[JobState, int]:
        """How many tasks of an array are in each state."""
        count = func.sum(JOBS.c.tasks)
        query = select(JOBS.c.state, count).where(JOBS.c.array == array).group_by(JOBS.c.state)
        with self._reading() as connection:
            return {JobState(state): number for state, number in connection.execute(query).all()}

    def existing(self, ids: Collection[JobId]) -> set[JobId]:
        """Those that have a row."""
        with self._reading() as connection:
            rows = connection.execute(_STATES, {"ids": json.dumps(list(ids))}).all()
        return {JobId(row.id) for row in rows}

    def users(self) -> list[str]:
        """The names of all users who have jobs."""
        with self._reading() as connection:
            users = connection.scalars(select(JOBS.c.user).distinct()).all()
        return [user for user in users if is_text(user)]

    def history(
        self,
        *,
        user: str | Owner | None = None,
        since: float | None = None,
        until: float | None = None,
        states: Collection[JobState] | None = None,
        arrays: Collection[JobId] | None = None,
        index: int | None = None,
        before: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs that existed at some time in `since` ≤ t < `until`, newest first. `user`: an
        account's, or those of all who have had the name.

        `before`: only those submitted before this one, to continue a result cut off by the limit.
        With very long commands, a result may be cut off sooner.
        """
        query = _JOB_ROWS.order_by(JOBS.c.id.desc()).limit(limit)
        if user is not None:
            query = query.where(*queries.of_user(user))
        if since is not None:
            query = query.where(or_(JOBS.c.ended_at.is_(None), JOBS.c.ended_at >= since))
        if until is not None:
            query = query.where(JOBS.c.submitted_at < until)
        if states is not None:
            query = query.where(JOBS.c.state.in_([state.value for state in states]))
        if arrays is not None:
            given = func.json_each(json.dumps(list(arrays))).table_valued("value")
            query = query.where(JOBS.c.array.in_(select(given.c.value)))
        if index is not None:
            behind, step = index - queries.INDEX, queries.STEP
            query = query.where(behind >= 0, behind % step == 0, behind < step * JOBS.c.tasks)
        if before is not None:
            query = query.where(JOBS.c.id < before)
        return self._read_jobs(query, {})

    def search(
        self,
        search: Search,
        order: Order = "submitted",
        reverse: bool = False,
        first: int = 0,
        limit: int = 100,
        count: bool = False,
    ) -> tuple[list[Job], int]:
        """The ended jobs that are searched for, from the `first` on in this order, and whether
        others follow: how many with `count`, otherwise 1 if any. With very long commands, the list
        may be cut off sooner."""
        with self._reading() as connection:
            ids = queries.find_ids(connection, search, order, reverse, first, limit + 1)
            all = queries.count_found(connection, search) if count else first + len(ids)
        found = self._read_jobs(_ROWS_IN_ORDER, {"ids": json.dumps(list(ids[:limit]))})
        more = max(0, all - first - len(found))
        return found, more if count else int(more > 0)

    def metrics(self, job_id: JobId) -> dict[str, list[tuple[float, float]]]:
        """What the job reported of itself: per name when, in Unix seconds, and the value."""
        query = select(METRICS.c.name, METRICS.c.at, METRICS.c.value).order_by(METRICS.c.at)
        found: dict[str, list[tuple[float, float]]] = {}
        with self._reading() as connection:
            for name, at, value in connection.execute(query.where(METRICS.c.job == job_id)):
                found.setdefault(name, []).append((at, value))
        return found

    def summaries(self, since: float, until: float) -> Iterator[JobSummary]:
        """Jobs that ended at `since` or later and were submitted before `until`, in order of their
        ends."""
        page: dict[str, float] = {"since": since, "until": until, "at": since, "id": -1}
        is_last = False
        while not is_last:
            with self._reading() as connection:
                rows = connection.execute(queries.SUMMARIES, page).all()
            yield from self._read_ran(rows)
            is_last = len(rows) < queries.PAGE
            if rows:
                page |= {"at": rows[-1].ended_at, "id": rows[-1].id}

    def alike(self, owner: Owner, group: str) -> list[JobSummary]:
        """The latest runs of a user's job that succeeded."""
        with self._reading() as connection:
            its = {**owner._asdict(), "group": group}
            rows = connection.execute(queries.SUMMARIES_ALIKE, its).all()
        return list(self._read_ran(rows))

    def decisions(self, job_id: JobId, limit: int) -> list[Decision]:
        """The decisions on a job, newest first."""
        query = (
            select(DECISIONS.c.id, DECISIONS.c.body)
            .where(DECISIONS.c.job == _ROW_OF)
            .order_by(DECISIONS.c.id.desc())
            .limit(limit)
        )
        with self._reading() as connection:
            rows = connection.execute(query, {"id": job_id}).all()
        what = f"decision {{0.id}} on job {job_id}"
        return list(self._bodies(rows, codec.decode_decision, what))

    def transitions(self, job_id: JobId) -> list[Transition]:
        """Every change of the job's state, in order."""
        query = select(TRANSITIONS).where(TRANSITIONS.c.job == _ROW_OF).order_by(TRANSITIONS.c.id)
        with self._reading() as connection:
            rows = connection.execute(query, {"id": job_id}).all()
        what = f"transition {{0.id}} of job {job_id}"
        return list(self._readable(rows, transition_of, what))

    def totals(
        self, since: float, user: str | Owner | None = None, until: float | None = None
    ) -> Statistics:
        """Totals over the jobs that ended at some time in `since` ≤ t < `until`."""
        with self._reading() as connection:
            rows = connection.execute(queries.totals_query(since, until, user)).all()
        return queries.sum_up(rows)

    def externals(
        self, since: float, user: str | None = None, until: float | None = None
    ) -> tuple[tuple[ExternalTotals, ...], tuple[External, ...]]:
        """External processes seen from `since` on: totals per user, of the time up to `until`, and
        the latest ones."""
        with self._reading() as connection:
            return (
                retention.total_externals(connection, since, user, until),
                retention.latest_externals(connection, since, user),
            )

    def known_from(self) -> float | None:
        """When the oldest job was submitted. None: there is none."""
        with self._reading() as connection:
            oldest: float | None = connection.scalar(select(func.min(JOBS.c.submitted_at)))
            return oldest

    def limit_changes(self, subject: str, limit: int) -> list[Limit]:
        """The limits that were set for a subject, the newest first."""
        query = _LIMIT_ROWS.where(LIMITS.c.subject == subject).order_by(LIMITS.c.id.desc())
        with self._reading() as connection:
            return list(self._limits(connection.execute(query.limit(limit)).all()))

    # -- internals

    def _read_jobs(
        self, query: Select[Any] | TextualSelect, values: Mapping[str, str]
    ) -> list[Job]:
        """As many as `_MOST_READ` allows: commands may be long, and listings have 10,000 jobs."""
        with self._readers:  # also for decoding, which takes longest
            with self._transaction() as connection:
                rows: list[Found[Any]] = []
                left = _MOST_READ
                for row in connection.execute(query.execution_options(yield_per=100), values):
                    left -= len(row.body)
                    if left < 0 and rows:
                        break
                    rows.append(row)
            return list(self._decode(rows))

    def _decode(self, rows: Iterable[Any]) -> Iterator[Job]:
        """The jobs in rows of `_JOB_ROWS`."""
        return (self._job(row, job_of) for row in rows)

    def _job(self, row: Any, decode: Callable[[Any], Job]) -> Job:
        """The job in a row, or what stands in for it."""
        try:
            return decode(row)
        except (ValueError, TypeError) as error:
            self.damage.note(f"job {row.id}", error)
            return stand_in(row._mapping)

    def _read_ran(self, rows: Iterable[Any]) -> Iterator[JobSummary]:
        return self._bodies(rows, codec.decode_summary, "job {0.id}")

    def _accounts(self, rows: Iterable[Any]) -> Iterator[Account]:
        return self._bodies(rows, codec.decode_account, "the account of {0.user}")

    def _limits(self, rows: Iterable[Any]) -> Iterator[Limit]:
        return self._bodies(rows, codec.decode_limit, "limit {0.id} of {0.subject}")

    def _bodies(self, rows: Iterable[Any], decode: Callable[[str], T], what: str) -> Iterator[T]:
        return self._readable(rows, lambda row: decode(row.body), what)

    def _readable(self, rows: Iterable[R], decode: Callable[[R], T], what: str) -> Iterator[T]:
        """The rows that can be decoded; the others are recorded as `what` and skipped."""
        for row in rows:
            try:
                yield decode(row)
            except (ValueError, TypeError) as error:  # ValueError: pydantic's own, too
                self.damage.note(what.format(row), error)

    def _live(self, row: Any) -> Job:
        return self._job(row, lambda row: expect_live(codec.decode_job(row.body), row.id))

    def _drain(self, row: Row) -> Drain:
        """A drain; an unreadable one still drains its GPU."""
        try:
            return codec.drain_of(row)
        except ValueError as error:
            self.damage.note(f"the drain of GPU {row['gpu']}", error)
            return Drain(GpuId(as_text(row["gpu"])), "the drain's record is damaged", "carmad", 0.0)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One reader at a time, so that the core, which writes, waits for one and not for all."""
        with self._readers, self._transaction() as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._explain(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except DatabaseErrors as error:
            if explained := explain(error, self.path):
                raise explained from error
            raise
