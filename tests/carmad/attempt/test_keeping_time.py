"""A job's supervisor ends it when its time is over, if carmad has not."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_job, a_spec
from carma_testing.builders import changed
from carmad.attempt.environment import job_environment
from carmad.attempt.process_tree import TIME_LIMIT, Tree
from carmad.core.jobs.attempt import Cause, GpuId, JobId, Suspension
from carmad.core.jobs.job import Job, stopping
from carmad.core.jobs.spec import Allocation
from carmad.core.jobs.states import JobState
from carmad.core.messages import Launch, Step, Suspend
from carmad.daemon import world
from carmad.engine.clock import boottime
from tests.attempts import Bench
from tests.carmad.daemon.test_world import a_world, performed
from tests.daemon import NO_KERNELS, Carmad, until

SAVES = "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_ends_as_carmad_would_end_it(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", SAVES))
    until(bench.lines, "the job to speak")
    assert bench.launcher.keep_time(job, boottime())
    end = bench.ended(job)
    assert (end["code"], end["stopped"], end["cause"]) == (3, True, Cause.TIME_LIMIT)
    assert bench.lines()[-1] == "saved"


def test_from_its_start_on(bench: Bench) -> None:
    job = bench.job("sh", "-c", STUBBORN)
    bench.launcher.launch(job, job_environment(job, ()), until=boottime())
    end = bench.ended(job)
    assert (end["signal"], end["cause"]) in [(9, TIME_LIMIT), (15, TIME_LIMIT)]


def test_the_last_word_counts() -> None:
    tree = Tree(0, None)
    for line, wanted in ((b"until 9.5", 9.5), (b"until soon", 9.5), (b"until inf", float("inf"))):
        tree.obey(line)
        assert tree.until == wanted


def test_the_cause_of_an_earlier_stop_stays(bench: Bench) -> None:
    job = stopping(bench.launch(bench.job("sh", "-c", STUBBORN)), Cause.CANCELLED)
    until(bench.lines, "the job to speak")
    bench.launcher.stop(job, 0.3)
    bench.launcher.keep_time(job, boottime())
    assert bench.ended(job)["cause"] == Cause.CANCELLED


# When: what carmad tells.


def a_timed_job(limit_s: float | None = 100.0, **its: Any) -> Job:
    spec = a_spec(time_limit_s=limit_s)
    its = {"state": JobState.RUNNING, "gpus": (GpuId("GPU-0"),), "started_at": 2.0, **its}
    return a_job(1, spec=spec, **its)


GONE = Suspension(50.0, "for others", (GpuId("GPU-0"),), "A100", "0", 900, 900)


@pytest.mark.parametrize(
    ("its", "due_at"),
    [
        ({}, 102.0),
        ({"suspended_s": 7.0, "served_s": 30.0}, 79.0),
        ({"suspension": GONE}, float("inf")),
        ({"started_at": None}, float("inf")),
        ({"limit_s": None}, float("inf")),
    ],
)
def test_when_it_is_due(its: dict[str, Any], due_at: float) -> None:
    job = a_timed_job(**its)
    assert job.due_at == due_at
    if due_at < float("inf"):
        assert job.attained_s(due_at) == 100.0


def test_the_time_of_an_allocation_is_its_systems() -> None:
    job = a_timed_job()
    its = replace(job.spec, allocation=Allocation("Slurm", 17))
    assert replace(job, spec=its).due_at == float("inf")


def test_each_change_is_told_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "boottime", lambda: 1000.0)  # the daemon's clock says 5.0
    its, _, launcher = a_world(tmp_path)
    launcher.is_there = True
    job = a_timed_job()
    longer = replace(job, spec=replace(job.spec, time_limit_s=200.0))
    gone = changed(longer, state=JobState.SUSPENDED, suspension=GONE)
    free = replace(job.spec, time_limit_s=None)
    its._signals.submit = lambda do, *words: do(*words)  # type: ignore[method-assign, assignment]
    for version in (job, job.with_note("of no interest"), longer, gone, longer):
        its.on_commit(Step((), (version,), (), ()))
    its.on_commit(Step((), (replace(longer, spec=free), replace(job, spec=free)), (), ()))
    later, never = 1000.0 + 202.0 - 5.0 + world.OVERTIME_S, float("inf")
    assert launcher.calls == [("until", 1, each) for each in (later, never, later, never)]
    performed(its)


def test_a_limit_that_comes_later_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "boottime", lambda: 1000.0)
    its, _, launcher = a_world(tmp_path)
    launcher.is_there = True
    job = a_timed_job(None)
    its.on_commit(Step((), (job,), (), ()))
    its.on_commit(Step((), (replace(job, spec=replace(job.spec, time_limit_s=100.0)),), (), ()))
    performed(its)
    assert ("until", 1, 1000.0 + 102.0 - 5.0 + world.OVERTIME_S) in launcher.calls


def test_a_job_that_lives_is_known_all_the_time(tmp_path: Path) -> None:
    """The thread "signals" comes whenever it likes: a change that it missed would be lost."""
    its, *_ = a_world(tmp_path)

    class Known(dict[JobId, Job]):
        def pop(self, id: JobId, *default: Any) -> Any:
            raise AssertionError("nobody is told meanwhile")

    its._timed = Known()
    job = a_timed_job()
    for version in (job, job.with_note("of no interest")):
        its.on_commit(Step((), (version,), (), ()))
    performed(its)


def test_a_new_daemon_tells_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may have been killed before it did."""
    monkeypatch.setattr(world, "boottime", lambda: 1000.0)
    its, _, launcher = a_world(tmp_path)
    launcher.is_there = True
    its.adopt(a_timed_job())
    performed(its)
    assert ("until", 1, 1000.0 + 102.0 - 5.0 + world.OVERTIME_S) in launcher.calls


@pytest.mark.parametrize("begun", [False, True])
def test_a_launch_tells_by_its_file_or_if_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr(world, "boottime", lambda: 1000.0)
    its, _, launcher = a_world(tmp_path)
    launcher.is_there = begun
    job = a_timed_job()
    its.on_commit(Step((), (job,), (), ()))
    its.shepherd.start()
    its.perform(Launch(job))
    until(lambda: launcher.calls[begun:], "both calls, or the launch alone")
    its.close()
    assert launcher.until == (due := 1000.0 + 102.0 - 5.0 + world.OVERTIME_S)
    assert [call[2] for call in launcher.calls if call[0] == "until"] == [due] * begun


def test_a_suspension_that_is_repeated_tells(tmp_path: Path) -> None:
    its, _, launcher = a_world(tmp_path)
    launcher.is_there = True
    its.shepherd.start()
    its._suspender.perform = lambda _: None  # type: ignore[method-assign]
    its.perform(Suspend(a_timed_job(suspension=GONE)))
    its.close()
    assert ("until", 1, float("inf")) in launcher.calls


def test_a_job_ends_in_time_while_carmad_hangs(tmp_path: Path) -> None:
    daemon = Carmad(tmp_path, "1xA100-40GB", **NO_KERNELS)
    try:
        daemon.start()
        job = daemon.sh(SAVES, time_limit_s=3)
        daemon.await_output(job, "up")
        daemon.signal(signal.SIGSTOP)
        exit = daemon.attempt(job) / "exit"
        until(exit.exists, "it to end")
        assert json.loads(exit.read_text())["cause"] == Cause.TIME_LIMIT
        daemon.signal(signal.SIGCONT)
        ended = daemon.ended(job)
        assert (ended["state"], ended["exit"]["cause"]) == ("timed_out", "time_limit")
        assert "it reached its own time limit, --time 3 s" in daemon.why(job)["headline"]
        assert "saved" in daemon.output(job)
    finally:
        daemon.signal(signal.SIGCONT)
        daemon.clear_away()
