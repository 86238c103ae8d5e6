"""The chores: what they remove and keep, and that a failing one does not affect others."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from carma_testing import a_job
from carmad import accounts
from carmad.accounts import Account, NoAccount
from carmad.config import Retention
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import JobsById
from carmad.core.messages import HoldRequested, Step, Tick
from carmad.daemon import housekeeping
from carmad.daemon.housekeeping import Housekeeping, release, remove_attempts, shorten_logs
from carmad.edge import Chore
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.store.sql import SqlStore
from tests.waiting import PATIENCE_S, until

SPEC = JobSpec(argv=("true",), user="ada", uid=1000, gid=1000, cwd="/", name="true")
LONG_AGO = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = SqlStore.open(tmp_path / "carma.db")
    live = a_job(1, spec=SPEC, state=JobState.RUNNING, attempt=2)
    ended = a_job(2, spec=SPEC, state=JobState.SUCCEEDED, attempt=1, ended_at=LONG_AGO)
    opened.commit(Step((Tick(LONG_AGO),), (live, ended), (), ()))
    yield opened
    opened.close()


def attempts(state_dir: Path, *names: str) -> Path:
    directory = state_dir / "jobs"
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "launch").touch()
        os.utime(directory / name, (LONG_AGO, LONG_AGO))
    return directory


def test_attempts_of_forgotten_jobs_are_removed(store: SqlStore, tmp_path: Path) -> None:
    directory = attempts(tmp_path, "1.1", "1.2", "2.1", "7.1", "7.2", "8.1", "mine.d", "9.x")
    os.utime(directory / "8.1")  # somebody is at work there
    assert remove_attempts(directory, store) == 2
    left = {path.name for path in directory.iterdir()}
    assert left == {"1.1", "1.2", "2.1", "8.1", "mine.d", "9.x"}
    assert remove_attempts(tmp_path / "nowhere", store) == 0


def test_a_purge_takes_old_jobs_and_their_attempts(store: SqlStore, tmp_path: Path) -> None:
    directory = attempts(tmp_path, "1.2", "2.1")
    Housekeeping(store, Retention(), tmp_path, lambda: None).purge()
    assert [job.id for job in store.history()] == [1]
    assert [path.name for path in directory.iterdir()] == ["1.2"]


def test_long_logs_keep_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_LOG_BYTES", 64 * 1024)
    (tmp_path / "mps").mkdir()
    (tmp_path / "jobs" / "1.1").mkdir(parents=True)
    long, short = tmp_path / "mps" / "control.log", tmp_path / "carmad.log"
    of_job = tmp_path / "jobs" / "1.1" / "supervisor.log"
    outside = tmp_path / "elsewhere"
    text = b"x" * 100_000 + b"the end"
    short.write_bytes(b"short")
    for path in (of_job, outside):
        path.write_bytes(text)
    (tmp_path / "link.log").symlink_to(outside)
    with long.open("wb", buffering=0) as writer:  # does not append: it leaves a hole
        writer.write(text)
        shorten_logs(tmp_path)
        assert long.read_bytes() == b""
        kept = long.with_name("control.log.1").read_bytes()
        assert len(kept) == 64 * 1024 and kept.endswith(b"the end")
        writer.write(b"again")
        shorten_logs(tmp_path)
        assert long.read_bytes().endswith(b"again")
    assert short.read_bytes() == b"short"
    assert of_job.read_bytes() == outside.read_bytes() == text


def test_chores_run_and_fail_on_their_own(
    store: SqlStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(housekeeping, "_FLUSH_S", 0.05)
    monkeypatch.setattr(housekeeping, "_SOON", housekeeping.timedelta())
    twice = threading.Event()
    flushed: list[str] = []

    def flush() -> None:
        flushed.append(threading.current_thread().name)
        if len(flushed) == 2:
            twice.set()
        raise RuntimeError("no luck") if len(flushed) == 1 else CarmaError("no room", "Make some.")

    keeper = Housekeeping(store, Retention(), tmp_path, flush)
    with caplog.at_level(logging.INFO):
        keeper.start()
        assert twice.wait(PATIENCE_S)
        until(lambda: len(store.history()) == 1, "what is old to be removed")
        keeper.stop()
    assert [job.id for job in store.history()] == [1]
    assert flushed[-1] == threading.current_thread().name  # the last one, as it stops
    assert "flush failed" in caplog.text and "no luck" in caplog.text
    assert "flush: no room. Make some." in caplog.text


def test_jobs_go_on_once_their_users_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory server had not answered; one user is gone for good."""
    held = [
        a_job(1, spec=SPEC, held=True, barred="there is no ada"),
        a_job(2, spec=replace(SPEC, user="bob"), held=True, barred="there is no bob"),
        a_job(3, spec=SPEC, held=True),
    ]

    def look(user: str, uid: int) -> Account:
        if user == "bob":
            raise NoAccount("there is no bob")
        return Account(uid, uid, ())

    monkeypatch.setattr(accounts, "account", look)
    posted: list[HoldRequested] = []

    def ask(question: Callable[[Any], Any]) -> Any:
        found = question(SimpleNamespace(jobs=JobsById(held)))
        return SimpleNamespace(result=lambda: found)

    inbox = SimpleNamespace(ask=ask, post=posted.append, clock=lambda: 5.0)
    release(cast(Inbox, inbox))
    assert [(each.job, each.held) for each in posted] == [(1, False)]


def test_every_chore_is_scheduled_patiently(store: SqlStore, tmp_path: Path) -> None:
    for kept, expected in (
        (7, {"flush", "trim", "purge", "backup"}),
        (0, {"flush", "trim", "purge"}),
    ):
        keeper = Housekeeping(store, Retention(backups=kept), tmp_path, lambda: None)
        keeper.start()
        jobs = keeper._scheduler.get_jobs()
        keeper.stop()
        assert {job.name for job in jobs} == expected
        assert all(job.coalesce and job.misfire_grace_time is None for job in jobs)


def test_others_chores_are_done_when_they_ask_for_it(store: SqlStore, tmp_path: Path) -> None:
    made: list[str] = []
    chores = (
        Chore("report", lambda: made.append("report"), "cron", {"minute": 0}, at_start=True),
        Chore("save", lambda: made.append("save"), "interval", {"minutes": 5}, at_stop=True),
    )
    keeper = Housekeeping(store, Retention(backups=0), tmp_path, lambda: None, chores)
    keeper.start()
    jobs = {job.name: job for job in keeper._scheduler.get_jobs()}
    assert jobs.keys() == {"flush", "trim", "purge", "report", "save"}
    report = jobs["report"]
    assert report.next_run_time - datetime.now(UTC) <= timedelta(minutes=2), "one may be due"
    assert {str(each) for each in report.trigger.fields if each.name == "minute"} == {"0"}
    assert jobs["save"].trigger.interval == timedelta(minutes=5)
    report.func()
    keeper.stop()
    assert made == ["report", "save"]


def test_a_chore_that_hangs_keeps_nothing_from_the_disk(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_END_WITHIN_S", 0.1)
    begun, done, made = threading.Event(), threading.Event(), list[str]()

    def hang() -> None:
        begun.set()
        done.wait(PATIENCE_S)

    chores = (Chore("hang", hang, "interval", {"seconds": 0.05}),)
    keeper = Housekeeping(store, Retention(), tmp_path, lambda: made.append("flush"), chores)
    keeper.start()
    assert begun.wait(PATIENCE_S)
    keeper.stop()
    assert made == ["flush"] and not done.is_set()
    done.set()


def test_backups_are_pruned(store: SqlStore, tmp_path: Path) -> None:
    keeper = Housekeeping(store, Retention(backups=2), tmp_path, lambda: None)
    for _ in range(3):
        keeper.backup()
    assert len(list((tmp_path / "backups").iterdir())) == 2
