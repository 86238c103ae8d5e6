"""A benchmark's own carmad leaves nothing behind."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from benchmarks.daemon import ticks
from benchmarks.daemon.carmad import SLEEPER, Daemon
from carmad import registry
from carmad.attempt.proc import own_environment
from carmad.core.messages import Sampled
from carmad.core.scheduler import Scheduler
from carmad.errors import CarmaError
from tests.daemon import Process
from tests.waiting import until

ONE = "1xA100-40GB"


@pytest.fixture(autouse=True)
def own_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Daemon` sets it for the client."""
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")


def running(daemon: Daemon) -> psutil.Process:
    """Its only job's process."""
    daemon.run(SLEEPER)

    def found() -> list[psutil.Process]:
        return [
            each
            for each in psutil.process_iter()
            if own_environment(each.pid).get("CARMA_SOCKET") == daemon.socket
            and each.cmdline() == SLEEPER
        ]

    return until(found)[0]


def test_jobs_of_a_carmad_that_died_are_killed_and_its_log_is_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CarmaError), Daemon(gpus=ONE) as daemon:
        job = running(daemon)
        daemon.kill()
    assert not job.is_running()
    assert "ready: policy" in capfd.readouterr().err
    assert not daemon.directory.exists()


def test_jobs_that_do_not_end_cost_no_measurement(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def never(self: Daemon, within_s: float = 0.0) -> None:
        raise TimeoutError("its jobs have not ended")

    monkeypatch.setattr(Daemon, "await_idle", never)
    with Daemon(gpus=ONE) as daemon:
        pid = daemon.pid
    assert not psutil.pid_exists(pid)
    assert "have not ended: killed" in capfd.readouterr().err


def test_what_a_benchmark_raised_is_not_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Daemon(gpus=ONE):
        raise KeyError
    assert "ready: policy" in capfd.readouterr().err


@pytest.mark.parametrize("policy", registry.names("policies"))
def test_the_tick_that_starts_jobs_is_not_the_policy_s_first(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "QUEUED", 16)
    monkeypatch.setattr(ticks, "RESTORED", 1)
    started = []
    timed = ticks._time

    def noted(core: Scheduler, event: Sampled, placed: int) -> ticks.Tick:
        started.append(placed)
        return timed(core, event, placed)  # fails unless so many start

    monkeypatch.setattr(ticks, "_time", noted)
    ticks.placing(policy, backfill=0)
    assert started == [0, 8]


def test_a_forked_carmad_may_have_ended_before_it_is_looked_at() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ended = Process(gone.pid)
    ended.kill()
    assert (ended.poll(), ended.wait()) == (0, 0)
