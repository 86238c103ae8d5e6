"""A backup is put back while jobs run: none of them is forgotten, and none is run twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.test_bad_start import back_up
from tests.carmad.daemon.test_suspend_daemon import ask, running_job, steps, used_mib
from tests.daemon import NO_KERNELS, Carmad, running, until
from tests.storm import SUSPENDS

WAITS = "echo $CARMA_RESTART_COUNT $$; while [ ! -e go ]; do sleep 0.05; done"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS, **SUSPENDS) as carmad:
        yield carmad


def saved(daemon: Carmad) -> Path:
    daemon.stop()
    copy = back_up(daemon)
    daemon.start()
    return copy


def put_back(daemon: Carmad, copy: Path) -> None:
    daemon.stop()
    (daemon.state / "carma.db-wal").unlink(missing_ok=True)
    shutil.copy(copy, daemon.state / "carma.db")
    daemon.start()


def test_a_job_that_was_suspended_since_runs_again(daemon: Carmad) -> None:
    id = running_job(daemon, seconds=6)
    copy = saved(daemon)
    ask(daemon, "suspend", id)
    daemon.await_state(id, "suspended")
    put_back(daemon, copy)
    assert daemon.job(id)["state"] == "running"
    assert (daemon.ended(id)["state"], daemon.job(id)["attempt"]) == ("succeeded", 1)
    assert "the database has it as running: it resumes" in " ".join(daemon.job(id)["notes"])


def test_a_job_that_resumed_since_leaves_its_gpu_again(daemon: Carmad) -> None:
    id = running_job(daemon, seconds=6)
    ask(daemon, "suspend", id)
    daemon.await_state(id, "suspended")
    copy = saved(daemon)
    ask(daemon, "resume", id)
    daemon.await_state(id, "running")
    put_back(daemon, copy)
    until(lambda: sum(used_mib(daemon)) == 0, "its memory to be free")
    assert daemon.job(id)["state"] == "suspended"
    ask(daemon, "resume", id)
    assert (daemon.ended(id)["state"], daemon.job(id)["attempt"]) == ("succeeded", 1)
    assert steps(daemon, id) == sorted(set(steps(daemon, id)))


def test_a_job_that_began_again_since_goes_on_as_that(daemon: Carmad) -> None:
    id = daemon.sh(WAITS, gpus=0)
    daemon.await_output(id, "0 ")
    copy = saved(daemon)
    ask(daemon, "requeue", id)
    daemon.await_output(id, "1 ")
    put_back(daemon, copy)
    daemon.await_state(id, "running")
    (daemon.work / "go").touch()
    ended = daemon.ended(id)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2)
    lines = [line for line in daemon.output(id).splitlines() if line[:1].isdigit()]
    assert [line.split()[0] for line in lines] == ["0", "1"]


def test_an_ended_job_that_runs_again_since_is_not_run_twice(daemon: Carmad) -> None:
    id = daemon.sh(f"[ $CARMA_RESTART_COUNT = 0 ] && exit 3; {WAITS}", gpus=0)
    assert daemon.ended(id)["state"] == "failed"
    copy = saved(daemon)
    ask(daemon, "requeue", id)
    daemon.await_output(id, "1 ")
    put_back(daemon, copy)
    assert daemon.job(id)["state"] == "failed"
    ask(daemon, "requeue", id)
    daemon.await_state(id, "running")
    (daemon.work / "go").touch()
    assert daemon.ended(id)["state"] == "succeeded"
    assert daemon.output(id).count("1 ") == 1
