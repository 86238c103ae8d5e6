"""The store keeps what it acknowledged, through crashes, full disks, upgrades and purges."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from sqlalchemy import text

from carma_testing import changed
from carma_testing.builders import a_job
from carmad.config import Retention
from carmad.core.gpus.gpu import Drain, GpuSample
from carmad.core.jobs.attempt import EndedAttempt, GpuId, JobId
from carmad.core.jobs.findings import Prediction, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask, JobSpec, Script
from carmad.core.jobs.states import JobState, Over
from carmad.core.messages import CancelRequested, Event, Measured, Sampled, Step, Submitted, Tick
from carmad.core.placing.decision import Decision, Placement, Reason, Verdict
from carmad.core.scheduler import HANDLERS
from carmad.errors import CarmaError, Hopeless
from carmad.learning.files import decode_model
from carmad.learning.models import Model
from carmad.store import codec, database, journal, queries, reading, retention
from carmad.store.database import StoreFull
from carmad.store.queries import Search
from carmad.store.sql import SqlStore
from carmad.store.values import Spread, Transition
from tests.waiting import PATIENCE_S

DAY = 86_400.0


def job(number: int, state: JobState = JobState.QUEUED, **fields: Any) -> Job:
    user, name = fields.pop("user", "ada"), fields.pop("name", "train")
    array = fields.pop("array", None)
    spec = JobSpec(
        argv=("python", "train.py"),
        user=user,
        uid=1000,
        gid=1000,
        cwd="/home/ada",
        name=name,
        env=(("PATH", "/usr/bin"), ("NAME", "Grüße\n")),
        array=array,
    )
    return a_job(number, spec=spec, state=state, **{"submitted_at": float(number)} | fields)


def step(*jobs: Job, at: float = 0.0, event: Event | None = None, **fields: Any) -> Step:
    return Step((event or Tick(at),), jobs, fields.pop("decisions", ()), (), **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "carma.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    opened = SqlStore.open(path)
    yield opened
    opened.close()


def reopened(store: SqlStore) -> SqlStore:
    store.close()
    return SqlStore.open(store.path)


# -- what is committed is there ------------------------------------------------------------------


def test_files_are_private(store: SqlStore, path: Path) -> None:
    store.commit(step(job(1)))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert store.backup(1).stat().st_mode & 0o777 == 0o600


def test_the_connection_is_durable_and_alone(store: SqlStore) -> None:
    with store._engine.connect() as connection:
        for pragma, value in {
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "locking_mode": "exclusive",
        }.items():
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        assert connection.get_isolation_level() == "SERIALIZABLE"
    assert store._engine.pool.size() == 1  # type: ignore[attr-defined]
    assert store._engine.hide_parameters  # what it fails to write is not for the log


def test_restores_what_the_core_needs(store: SqlStore) -> None:
    drain = Drain(GpuId("GPU-1"), "a fan is loud", "root", 3.0)
    over = job(2, JobState.SUCCEEDED, ended_at=9.0)
    sooner = job(4, JobState.FAILED, ended_at=5.0)
    runs = job(1, JobState.RUNNING, gpus=(GpuId("GPU-2"),))
    store.commit(step(job(3), over, runs, sooner, drains=(drain,)))
    restored = reopened(store).restore()
    assert restored.jobs == (runs, job(3))
    assert restored.ended == ((4, JobState.FAILED, 1), (2, JobState.SUCCEEDED, 1))
    assert restored.drains == (drain,)
    assert restored.next_id == 5


def test_an_empty_store_restores_to_nothing(store: SqlStore) -> None:
    restored = store.restore()
    assert (restored.jobs, restored.ended, restored.drains) == ((), (), ())
    assert restored.next_id == 1
    assert store.job(JobId(1)) is None
    assert store.totals(0.0).overall.jobs == ()


def test_drains_are_replaced_and_otherwise_left(store: SqlStore) -> None:
    drain = Drain(GpuId("GPU-1"), "dust", "root", 3.0)
    store.commit(step(drains=(drain,)))
    store.commit(step(job(1)))
    assert store.restore().drains == (drain,)
    store.commit(step(drains=()))
    assert store.restore().drains == ()


def test_every_version_leaves_its_transition(store: SqlStore) -> None:
    first = job(1, JobState.PENDING)
    queued = changed(first, state=JobState.QUEUED)
    store.commit(step(first, queued, replace(queued, held=True), at=1.0))
    starting = changed(queued, state=JobState.STARTING, attempt=1)
    failed = changed(starting, state=JobState.QUEUED)
    again = changed(failed, state=JobState.STARTING, attempt=2)
    store.commit(step(job(2), starting, failed, again, at=2.0))
    store.commit(step(changed(again, warned=True), at=3.0))
    assert store.transitions(JobId(1)) == [
        Transition(1.0, JobId(1), None, JobState.PENDING, 0),
        Transition(1.0, JobId(1), JobState.PENDING, JobState.QUEUED, 0),
        Transition(2.0, JobId(1), JobState.QUEUED, JobState.STARTING, 1),
        Transition(2.0, JobId(1), JobState.STARTING, JobState.QUEUED, 1),
        Transition(2.0, JobId(1), JobState.QUEUED, JobState.STARTING, 2),
    ]
    assert store.job(JobId(1)) == changed(again, warned=True)


def test_a_step_of_nothing_costs_no_transaction(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = Sampled(1.0, (GpuSample(GpuId("GPU-1"), 1.0),))
    monkeypatch.setattr(store, "_transaction", None)
    store.commit(Step((sampled, Tick(1.0)), (), (), ()))
    with pytest.raises(TypeError):
        store.commit(step(job(1)))


def test_decisions_come_back_newest_first(store: SqlStore) -> None:
    verdict = Verdict(GpuId("GPU-1"), (Reason("busy", 0.8, 0.9),), rank=inf)
    decisions = tuple(
        Decision(at, "magm", Placement(JobId(number), (), (verdict,)))
        for at, number in ((1.0, 1), (2.0, 2), (3.0, 1))
    )
    store.commit(step(job(1), job(2), decisions=decisions))
    assert store.decisions(JobId(1), 10) == [decisions[2], decisions[0]]
    assert store.decisions(JobId(1), 1) == [decisions[2]]


def test_an_infinite_number_of_a_job_stays_one(store: SqlStore) -> None:
    endless = job(1, prediction=Prediction(inf, "history"))
    store.commit(step(endless))
    assert [*store.restore().jobs] == [endless]


def test_a_step_is_committed_as_a_whole(store: SqlStore) -> None:
    nobody = Decision(1.0, "magm", Placement(JobId(99)))  # no such job: the reference is refused
    with pytest.raises(Exception, match="FOREIGN KEY"):
        store.commit(step(job(1), decisions=(nobody,)))
    assert store.job(JobId(1)) is None
    store.commit(step(job(1)))
    assert len(store.transitions(JobId(1))) == 1


# -- questions -----------------------------------------------------------------------------------


def test_history_filters(store: SqlStore) -> None:
    array = ArrayTask(JobId(3), 0)
    jobs = [
        job(1, JobState.SUCCEEDED, submitted_at=10.0, ended_at=20.0),
        job(2, JobState.FAILED, submitted_at=15.0, ended_at=40.0, user="bob"),
        job(3, JobState.RUNNING, submitted_at=30.0, array=array),
        job(4, submitted_at=50.0),
    ]
    store.commit(step(*jobs))

    def ids(**asked: Any) -> list[int]:
        return [found.id for found in store.history(**asked)]

    assert store.history() == jobs[::-1]
    assert ids(limit=2) == [4, 3]
    assert ids(user="bob") == [2]
    assert ids(since=30.0) == [4, 3, 2]
    assert ids(until=30.0) == [2, 1]
    assert ids(since=20.0, until=31.0) == [3, 2, 1]
    assert ids(states={JobState.RUNNING, JobState.FAILED}) == [3, 2]
    assert ids(states=()) == []
    assert ids(arrays=[JobId(3)]) == [3]
    assert [found.id for found in store.jobs([JobId(9), JobId(4), JobId(1)])] == [1, 4]
    assert store.existing([JobId(9), JobId(4)]) == {4}


def test_a_search_finds_by_words_and_sorts(store: SqlStore) -> None:
    swept = ArrayTask(JobId(2), 7, params=(("lr", "1e-3"), ("seed", "4")))
    ends = {"state": JobState.SUCCEEDED, "started_at": 20.0}
    store.commit(
        step(
            job(1, ended_at=50.0, name="BERT Größe", usage=Usage(gpu_seconds=9.0), **ends),
            job(2, ended_at=60.0, array=swept, usage=Usage(gpu_seconds=3.0), **ends),
            job(3, JobState.FAILED, ended_at=40.0, user="bob", name="vit"),
            job(4, name="bert", state=JobState.RUNNING),
        )
    )

    def ids(order: Any = "submitted", reverse: bool = False, **asked: Any) -> list[int]:
        return [found.id for found in store.search(Search(**asked), order, reverse)[0]]

    assert ids() == [3, 2, 1]
    assert ids(text="bert GRÖSSE") == ids(text="größe") == [1]
    assert ids(text="lr=1e-3 seed") == ids(text="2_7") == [2]
    assert ids(text="train.py") == [3, 2, 1]  # of the command
    assert ids(text="%") == ids(states=()) == []
    assert ids(user="bob") == ids(states={JobState.FAILED}) == [3]
    assert ids(since=45.0) == [2, 1] and ids(before=JobId(3)) == [2, 1]
    assert ids("ended") == [2, 1, 3] and ids("ended", reverse=True) == [3, 1, 2]
    assert ids("ran") == [2, 1, 3]  # one that never ran is last
    assert ids("ran", reverse=True) == [1, 2, 3]
    assert ids("gpu-hours") == [1, 2, 3] and ids("name", reverse=True) == [1, 2, 3]
    some, more = store.search(Search(user="ada"), "ended", first=1, limit=5, count=True)
    assert ([found.id for found in some], more) == ([1], 0)
    assert store.search(Search(), limit=1)[1] == 1  # there are others
    assert store.search(Search(), limit=1, count=True)[1] == 2
    again = changed(store.jobs([JobId(1)])[0], state=JobState.QUEUED)
    store.commit(step(again))
    assert ids() == [3, 2]  # it runs again


@pytest.mark.parametrize("order", sorted(queries._ORDERS))
def test_a_search_reads_one_index_and_no_rows(store: SqlStore, order: Any) -> None:
    where, given = Search("ada", since=1.0, until=9.0, text="a b", before=JobId(9)).conditions()
    asked = text(
        f"EXPLAIN QUERY PLAN SELECT id, {queries._ORDERS[order]} {queries._IN_INDEX} {where}"
    )
    with store._engine.begin() as connection:
        plan = " ".join(row[-1] for row in connection.execute(asked, given))
    assert "COVERING INDEX ix_jobs_search (user=? AND ended_at>?)" in plan


def test_a_metric_is_a_curve_that_is_thinned_when_it_grows_long(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_REPORTS", 9)
    running = job(1, JobState.RUNNING)
    store.commit(step(running))
    for at in range(12):
        told = Measured(float(at), JobId(1), (("loss", 1.0 / (1 + at)), ("acc", float(at))))
        stranger = Measured(float(at), JobId(99), (("loss", 1.0),))
        store.commit(Step((told, stranger), (running,), (), ()))
    found = store.metrics(JobId(1))
    assert set(found) == {"loss", "acc"}
    times = [at for at, _ in found["acc"]]
    assert times == sorted(times) and len(times) <= 9
    assert (times[0], times[-1]) == (0.0, 11.0)
    assert found["acc"] == [(at, at) for at in times]
    store.commit(step(changed(running, state=JobState.SUCCEEDED, ended_at=20.0)))
    assert store.purge(100 * DAY, Retention(ended_days=1)) == 1
    assert store.metrics(JobId(1)) == {}


def test_totals(store: SqlStore) -> None:
    for number in range(1, 21):
        waiting = job(number, submitted_at=0.0, user="ada" if number > 1 else "bob")
        store.commit(step(waiting, at=0.0))
        begun = changed(waiting, state=JobState.STARTING, started_at=float(number), attempt=1)
        store.commit(step(begun, at=float(number)))
        retried = changed(begun, attempt=2, started_at=100.0)  # its wait is that of the first
        store.commit(step(changed(begun, state=JobState.QUEUED), retried, at=100.0))
        ended = changed(
            retried,
            state=JobState.SUCCEEDED,
            ended_at=100.0 + number,
            usage=Usage(energy_j=2.0, gpu_seconds=1800.0),
        )
        store.commit(step(ended, at=ended.ended_at))
    store.commit(step(job(21, JobState.CANCELLED, ended_at=200.0, user="bob")))
    found = store.totals(0.0)
    assert found.overall.jobs == ((JobState.SUCCEEDED, 20), (JobState.CANCELLED, 1))
    assert found.overall.gpu_hours == 10.0
    assert found.overall.energy_j == 40.0
    assert found.overall.wait == Spread(mean_s=10.5, p95_s=19.0)
    assert found.overall.run == Spread(mean_s=10.5, p95_s=19.0)
    assert [user for user, _ in found.users] == ["ada", "bob"]
    assert dict(found.users)["bob"].wait == Spread(1.0, 1.0)
    assert store.totals(115.0, "ada").overall.jobs == ((JobState.SUCCEEDED, 6),)


def test_purge_and_ids_never_given_twice(store: SqlStore) -> None:
    now = 100 * DAY
    old = [job(n, JobState.SUCCEEDED, ended_at=n * 1.0) for n in range(2, 1203)]
    recent = job(1, JobState.FAILED, ended_at=now - 5.0)
    decision = Decision(1.0, "magm", Placement(JobId(2)))
    event = CancelRequested(1.0, JobId(2), "ada")
    store.commit(step(*old, recent, event=event, decisions=(decision,)))
    store.commit(step(job(1300), at=now, event=CancelRequested(now, JobId(1), "ada")))
    store.commit(step(job(1300, JobState.CANCELLED, ended_at=2.0), at=now))
    assert store.purge(now, Retention(ended_days=1)) == 1202
    assert store.history() == [recent]
    assert store.transitions(JobId(2)) == [] and store.decisions(JobId(2), 9) == []
    assert reopened(store).restore().next_id == 1301


def test_a_job_that_runs_again_is_not_purged(store: SqlStore) -> None:
    ended = job(1, JobState.FAILED, ended_at=1.0)
    store.commit(step(ended))
    store.commit(step(changed(ended, state=JobState.QUEUED)))
    assert store.purge(100 * DAY, Retention(ended_days=1)) == 0
    assert len(store.restore().jobs) == 1


# -- crashes and full disks ----------------------------------------------------------------------


def _commit_for_ever(path: Path, acknowledge: int, first: int) -> None:
    store = SqlStore.open(path)
    for number in range(first, 1_000_000):
        waiting = job(number)
        event = Submitted(1.0, waiting.id, (waiting.spec,))
        store.commit(step(waiting, event=event))
        store.commit(
            step(changed(waiting, state=JobState.STARTING, attempt=1, gpus=(GpuId("GPU-1"),)))
        )
        os.write(acknowledge, f"{number}\n".encode())


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    acknowledged = 0
    for life in range(12):
        reading, writing = os.pipe()
        child = fork.Process(target=_commit_for_ever, args=(path, writing, acknowledged + 2))
        child.start()
        os.close(writing)
        with os.fdopen(reading) as lines:
            for _ in range(5 + life):
                acknowledged = int(lines.readline())
            time.sleep(life * 0.0007)  # anywhere within a commit
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            for line in lines:
                acknowledged = int(line)
        child.join()
        store = SqlStore.open(path)
        jobs = {found.id: found for found in store.history(limit=1_000_000)}
        assert jobs[JobId(acknowledged)].state is JobState.STARTING
        for found in jobs.values():
            moves = store.transitions(found.id)
            assert moves[-1].after is found.state
            assert len(moves) == 1 + found.attempt
        assert store.restore().next_id == max(jobs) + 1
        acknowledged = max(jobs)
        store.close()


def test_a_full_database_refuses_and_recovers(store: SqlStore) -> None:
    def allow(pages: int) -> None:
        connection = store._engine.raw_connection()
        connection.cursor().execute(f"PRAGMA max_page_count = {pages}")
        connection.close()

    store.commit(step(job(1)))
    allow(1)  # that is, as many as there are
    big = replace(job(2), spec=replace(job(2).spec, argv=("x" * 1_000_000,)))
    for _ in range(2):
        with pytest.raises(StoreFull, match="full") as caught:
            store.commit(step(job(3), big))
        assert "Free space" in caught.value.hint
    assert [found.id for found in store.history()] == [1]
    allow(1_000_000)
    store.commit(step(job(3), big))
    assert store.job(JobId(2)) == big
    assert len(store.transitions(JobId(2))) == 1


def _meet_the_file_limit(path: Path, outcome: Any) -> None:
    store = SqlStore.open(path)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    number, refused = 0, 0
    while refused < 5:
        try:
            store.commit(step(job(number + 1, name="x" * 2_000)))
            number += 1
        except StoreFull:
            refused += 1
    kept = len(store.history(limit=1000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.commit(step(job(number + 1)))
    store.close()
    outcome.send((number, kept))


def test_a_failing_write_is_rolled_back_and_later_ones_work(path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    reading, writing = fork.Pipe(duplex=False)
    child = fork.Process(target=_meet_the_file_limit, args=(path, writing))
    child.start()
    number, kept = reading.recv()
    child.join()
    assert child.exitcode == 0
    assert kept == number > 5
    store = SqlStore.open(path)
    assert [found.id for found in store.history(limit=1000)] == list(range(number + 1, 0, -1))
    store.close()


# -- opening -------------------------------------------------------------------------------------


def test_a_second_opener_is_refused(store: SqlStore) -> None:
    with pytest.raises(CarmaError, match="another process"):
        SqlStore.open(store.path)
    other = (
        "import pathlib, sys; from carmad.store.sql import SqlStore;"
        "SqlStore.open(pathlib.Path(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", other, store.path], capture_output=True)
    assert b"CarmaError: another process" in ended.stderr
    store.commit(step(job(1)))


@pytest.mark.parametrize("damage", ["header", "page"])
def test_a_damaged_file_names_its_backup(store: SqlStore, damage: str) -> None:
    store.commit(step(*(job(number) for number in range(1, 500))))
    store.backup(3)
    backup = store.backup(3)
    store.commit(step(job(500)))
    store.close()
    with store.path.open("r+b") as file:
        file.seek(0 if damage == "header" else 4096 * 3)
        file.write(os.urandom(4096 * 20))
    with pytest.raises(CarmaError, match="damaged") as caught:
        SqlStore.open(store.path)
    command = caught.value.hint.partition("run: ")[2]
    assert str(backup) in command
    assert os.system(command) == 0  # what the hint says does help
    restored = SqlStore.open(store.path)
    assert restored.restore().next_id == 500
    restored.close()


def test_a_damaged_file_without_a_backup(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, whatever else it is " * 100)
    with pytest.raises(CarmaError, match="damaged") as caught:
        SqlStore.open(path)
    assert "no backup" in caught.value.hint


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CarmaError, match="cannot open"):
        SqlStore.open(tmp_path / "file" / "carma.db")


# -- backups -------------------------------------------------------------------------------------


def test_backups_are_whole_and_only_so_many(store: SqlStore) -> None:
    for number in range(1, 5):
        store.commit(step(job(number)))
        newest = store.backup(keep=2)
    assert len(list(newest.parent.iterdir())) == 2
    copy = SqlStore.open(newest)
    assert copy.restore() == store.restore()
    copy.close()


def test_commits_go_on_during_a_backup(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit(step(*(job(n, name="x" * 3000) for n in range(1, 4000))))
    committed = threading.Event()

    def commit() -> None:
        for number in range(4000, 4100):
            store.commit(step(job(number), replace(job(1), overtaken=number)))
            committed.set()

    def between_two_parts(_seconds: float) -> None:
        if not thread.ident:
            thread.start()
        assert committed.wait(PATIENCE_S)

    thread = threading.Thread(target=commit)
    monkeypatch.setattr(database, "time", types.SimpleNamespace(sleep=between_two_parts))
    backup = store.backup(1)
    thread.join()
    copy = SqlStore.open(backup)
    ids = [found.id for found in copy.history(limit=10_000)]
    assert ids == list(range(len(ids), 0, -1)) and len(ids) >= 3999
    newest = copy.job(JobId(1))
    assert newest and newest.overtaken == (ids[0] if ids[0] >= 4000 else 0)
    copy.close()


def test_the_core_does_not_wait_behind_readers(store: SqlStore) -> None:
    store.commit(step(job(1)))
    found: list[Job] = []
    readers = [threading.Thread(target=lambda: found.extend(store.history())) for _ in range(9)]
    with store._readers:
        for reader in readers:
            reader.start()
        store.commit(step(job(2)))
        assert found == []
    for reader in readers:
        reader.join()
    assert len(found) == 18


def test_threads_take_turns(store: SqlStore) -> None:
    failures = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 30):
                store.commit(step(job(number)))
                assert store.job(JobId(number)) == job(number)
                store.history(limit=5)
        except Exception as error:  # noqa: BLE001 - it would be lost with its thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (1, 101, 201, 301)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.restore().jobs) == 120


# -- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("schema", "whose"), [(0, "an earlier"), (99, "a newer")])
def test_a_database_of_another_version_is_refused_and_left_as_it_is(
    store: SqlStore, schema: int, whose: str
) -> None:
    store.commit(step(job(1)))
    store.close()
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema}")
    before = store.path.read_bytes()
    with pytest.raises(Hopeless, match=f"made by {whose} version of CARMA") as caught:
        SqlStore.open(store.path)
    folder = store.path.parent
    assert f"mv {folder} {folder}.schema-{schema}" in caught.value.hint
    assert store.path.read_bytes() == before
    folder.rename(f"{folder}.schema-{schema}")  # as it says
    with closing(SqlStore.open(store.path)) as fresh:
        assert fresh.restore().next_id == 1


# -- environments --------------------------------------------------------------------------------

LONG = tuple((f"VARIABLE_{n}", "x" * 1000) for n in range(100))


def submitted(number: int, env: tuple[tuple[str, str], ...], user: str = "ada") -> Step:
    """Like the daemon: the core's jobs have only a reference to their environment."""
    bare = retention.without_contents(replace(job(number, user=user).spec, env=env))
    waiting = replace(job(number), spec=bare)
    return step(waiting, event=Submitted(1.0, waiting.id, (bare,), env=env))


def stored(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT user FROM environments")]


def test_an_environment_is_stored_once_and_not_with_each_job(store: SqlStore) -> None:
    env = (*LONG, ("VIRTUAL_ENV", "/home/ada/v"))
    for number in range(1, 21):
        store.commit(submitted(number, env))
    kept = store.restore().jobs
    assert all(found.spec.env == (("VIRTUAL_ENV", "/home/ada/v"),) for found in kept)
    assert store.whole(kept[7].spec).env == env
    assert kept[0].spec.environment == kept[19].spec.environment
    store.close()
    assert store.path.stat().st_size < 4 * 100_000
    assert stored(store.path) == ["ada"]


def test_an_environment_counts_for_whose_it_is(store: SqlStore) -> None:
    mine = job(1).spec
    assert retention.without_contents(mine) != retention.without_contents(replace(mine, uid=1001))
    assert retention.without_contents(replace(mine, env=())).environment is None


def test_an_environment_goes_with_the_last_job_that_had_it(store: SqlStore) -> None:
    for number in (1, 2):
        store.commit(submitted(number, LONG))
    spec = store.restore().jobs[0].spec
    ended = replace(job(1, JobState.CANCELLED, ended_at=1.0), spec=spec)
    store.commit(step(ended))
    store.purge(100 * DAY, Retention(ended_days=1))
    assert store.whole(spec).env == LONG
    store.commit(step(replace(ended, id=JobId(2))))
    store.purge(100 * DAY, Retention(ended_days=1))
    reopened_store = reopened(store)
    with pytest.raises(CarmaError, match="no longer stored"):
        reopened_store.whole(spec)
    reopened_store.close()


def scripted(number: int, text: str, **changes: Any) -> Step:
    """A job with a script, as the core has it."""
    spec = replace(job(number).spec, env=(), script=Script("", 0, 1, text))
    bare = retention.without_contents(spec)
    one = changed(job(number), spec=bare, **changes)
    return step(one, event=Submitted(1.0, one.id, (bare,), script=text))


def test_a_script_is_kept_as_long_as_a_job_that_runs_it(store: SqlStore) -> None:
    ended = {"state": JobState.CANCELLED, "ended_at": 1.0}
    store.commit(scripted(1, "exit 3\n", **ended))
    store.commit(scripted(2, "exit 3\n"))
    spec = store.restore().jobs[0].spec
    assert spec.script and not spec.script.text
    assert store.whole(spec).script == replace(spec.script, text="exit 3\n")
    store.purge(100 * DAY, Retention(ended_days=1))
    store.commit(scripted(2, "exit 3\n", **ended))
    store.purge(100 * DAY, Retention(ended_days=1))
    reopened_store = reopened(store)
    with pytest.raises(CarmaError, match="script is no longer stored"):
        reopened_store.whole(spec)
    reopened_store.close()


def test_scripts_count_as_what_their_user_has_on_disk(store: SqlStore) -> None:
    for number in range(1, 5):
        ended = {"state": JobState.CANCELLED, "ended_at": float(number)}
        store.commit(scripted(number, f"# {number}" * 100_000, **ended))
    store.trim(Retention(mib_per_user=1))
    assert {found.id for found in store.history(limit=9)} == {2, 3, 4}


def test_columns_that_are_no_text_break_nothing(path: Path) -> None:
    store = SqlStore.open(path)
    store.commit(step(job(1), job(2, JobState.SUCCEEDED, ended_at=3.0, started_at=2.0), job(3)))
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        broken = "CAST(x'61ff' AS TEXT)"
        connection.execute(f"UPDATE jobs SET user = {broken}, name = {broken} WHERE id < 3")
        connection.execute("UPDATE jobs SET body = 'no job' WHERE id = 1")
        connection.execute(f"INSERT INTO drains VALUES ({broken}, 'dust', 'root', 'yesterday')")
        connection.commit()
    store = SqlStore.open(path)
    assert store.users() == ["ada"]
    assert not store.totals(0.0).users
    restored = store.restore()
    assert "the drain of GPU a?" in store.damage.reasons()
    instead = restored.jobs[0]
    assert instead.spec.user == instead.spec.name == "a?"
    ended = changed(instead, state=JobState.CANCELLED, ended_at=9.0)
    store.commit(replace(step(ended), drains=restored.drains))
    assert store.job(JobId(1)) == ended
    store.close()


@pytest.mark.parametrize("tasks", ["0", "-5", "'x'", str(1 << 62)])
def test_a_row_that_stands_for_a_damaged_number_stands_for_one(path: Path, tasks: str) -> None:
    """The core would look for the next row for ever, or not start."""
    store = SqlStore.open(path)
    store.commit(step(*(job(number, JobState.FAILED, ended_at=3.0) for number in (1, 2, 3))))
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE jobs SET tasks = {tasks} WHERE id = 2")
        connection.commit()
    with closing(SqlStore.open(path)) as store:
        assert [one.tasks for one in store.restore().ended] == [1, 1, 1]
        assert [one.jobs for one in store.submissions()] == [1, 1, 1]


def test_what_stands_in_for_a_damaged_job_is_its_accounts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the name by now has nothing to do with it."""
    store = SqlStore.open(path)
    first = job(1)
    store.commit(step(first))
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET body = 'no job'")
        connection.commit()
    newcomer = types.SimpleNamespace(pw_uid=first.spec.uid + 1, pw_gid=7)
    monkeypatch.setattr("pwd.getpwnam", lambda _: newcomer)
    with closing(SqlStore.open(path)) as store:
        (instead,) = store.restore().jobs
        assert instead.spec.owner == first.spec.owner


# -- a user's share of the disk --------------------------------------------------------------------


def cancelled(number: int, user: str, env: tuple[tuple[str, str], ...] = ()) -> Step:
    new = submitted(number, env, user)
    ended = {"state": JobState.CANCELLED, "ended_at": float(number)}
    return replace(new, jobs=(changed(new.jobs[0], **ended),))


def test_the_oldest_jobs_of_who_has_too_many_are_forgotten(store: SqlStore) -> None:
    for number in range(1, 41):
        store.commit(cancelled(number, "ada", (("N", str(number) * 50_000),)))
    store.commit(cancelled(41, "bob", (("N", "1" * 100_000),)))
    store.commit(submitted(42, (("N", "2" * 100_000),)))
    assert store.trim(Retention(mib_per_user=1)) > 0
    kept = {found.id for found in store.history(limit=100)}
    assert {40, 41, 42} < kept
    assert kept == set(range(min(kept), 43))
    assert len(kept) < 30
    last = store.job(JobId(40))
    assert last and store.whole(last.spec).env == (("N", "40" * 50_000),)
    assert store.trim(Retention(mib_per_user=1)) == 0
    store.close()
    with closing(sqlite3.connect(store.path)) as connection:
        (taken,) = connection.execute("SELECT SUM(bytes) FROM environments").fetchone()
    assert taken < (1 << 20) + 300_000


def test_jobs_that_share_an_environment_free_it_together(store: SqlStore) -> None:
    env = (("N", "x" * 900_000),)
    for number in range(1, 10):
        store.commit(cancelled(number, "ada", env))
    for number in range(10, 13):
        store.commit(cancelled(number, "ada", (("N", str(number) * 100_000),)))
    assert store.trim(Retention(mib_per_user=1)) == 9
    assert [found.id for found in store.history()] == [12, 11, 10]


def test_a_job_that_is_run_again_and_again_counts_for_it(store: SqlStore) -> None:
    store.commit(cancelled(1, "ada"))
    again = cancelled(2, "ada")
    for _ in range(500):
        store.commit(again)
    assert retention.trim_jobs(store._transaction, "ada", most_bytes=50_000) == 2


def test_what_waits_is_not_forgotten_whatever_it_takes(store: SqlStore) -> None:
    for number in (1, 2, 3):
        store.commit(submitted(number, (("N", str(number) * 1_000_000),)))
    assert store.trim(Retention(mib_per_user=1)) == 0
    assert len(store.restore().jobs) == 3


def test_whose_jobs_could_not_be_trimmed_is_not_forgotten(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise StoreFull("no room")

    number = iter(range(1, 1000))
    for user in ("ada", "bob", "eve") * 10:
        store.commit(cancelled(next(number), user, (("A", f"{next(number)}" * 99_000),)))
    with monkeypatch.context() as patch:
        patch.setattr(retention, "trim_jobs", full)
        with pytest.raises(StoreFull):
            store.trim(Retention(mib_per_user=1))
    store.trim(Retention(mib_per_user=1))
    left = [store.history(user=user) for user in ("ada", "bob", "eve")]
    assert all(0 < len(jobs) < 10 for jobs in left)


def test_a_listing_reads_only_so_much(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit(step(*(job(n, name="x" * 1000) for n in range(1, 301))))
    monkeypatch.setattr(reading, "_MOST_READ", 250_000)
    first = store.history(limit=300)
    assert 0 < len(first) < 250
    rest = store.history(limit=300, before=first[-1].id)
    assert rest[0].id == first[-1].id - 1


# -- the codec -----------------------------------------------------------------------------------


def as_its_last(state: Any, last: EndedAttempt) -> Over:
    return Over(state, last.exit, last.ended_at, last)


def anything(hint: Any, within: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Values of a type, with every field filled in: hypothesis itself leaves defaults alone.

    `within`: the classes it is a part of. One may hold others of its kind, but no deeper.
    """
    simple = {
        str: st.text(max_size=8),
        int: st.integers(),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        type(None): st.none(),
        Any: st.integers(),
    }
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:  # numbers within bounds
        bounded = arguments[0] in (int, float)
        return st.from_type(hint) if bounded else anything(arguments[0], within)
    if supertype := getattr(hint, "__supertype__", None):
        return anything(supertype, within)
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(anything(one, within) for one in arguments)
    if get_origin(hint) is Literal:
        return st.sampled_from(arguments)
    if get_origin(hint) is tuple:
        if arguments[-1] is ...:
            if within.count(arguments[0]) > 1:
                return st.just(())
            return st.lists(anything(arguments[0], within), max_size=3).map(tuple)
        return st.tuples(*(anything(one, within) for one in arguments))
    if get_origin(hint) in (Mapping, dict):
        return st.dictionaries(*(anything(one, within) for one in arguments), max_size=3)
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        inside = (*within, hint)
        its = {each.name: anything(hints[each.name], inside) for each in fields(hint)}
        if hint is Over:  # as its attempt, if there is one
            with_one = {"state": its["state"], "last": anything(EndedAttempt, inside)}
            alone = st.builds(hint, **its | {"attempt": st.none()})
            return alone | st.builds(as_its_last, **with_one)
        return st.builds(hint, **its)
    if hint in simple:
        return simple[hint]
    assert issubclass(hint, Enum)
    return st.sampled_from(hint)


@given(anything(Job))
def test_any_job_round_trips(value: Job) -> None:
    assert codec.decode_job(codec.encode_job(value)) == value


@given(anything(Model))
def test_any_model_round_trips(value: Model) -> None:
    assert decode_model(codec.encode(value)) == value


@given(anything(Decision))
def test_any_decision_round_trips(value: Decision) -> None:
    assert codec.decode_decision(codec.encode(value)) == value


@given(st.one_of(*map(anything, HANDLERS)))
def test_any_event_round_trips_through_the_journal(value: Event) -> None:
    line = b"".join(journal._encode(journal.Turn((value,), ())))
    assert journal._turn(from_json(line)).events == (value,)


def test_rows_with_fields_that_are_not_known_can_be_read() -> None:
    its = a_job(7)
    body = from_json(codec.encode_job(its)) | {"color": "red"}
    assert codec.decode_job(json.dumps(body)) == its
