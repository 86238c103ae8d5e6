"""A user has exhausted all processes: the daemon keeps answering, and loses nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running, until

PLACES = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))  # version 1, version 2


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup that can limit processes, even root's."""
    for place in PLACES:
        path = place / f"carma-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / "pids.max").exists():
            break
        path.rmdir()
    else:
        pytest.skip("no cgroup can be made that limits processes")
    yield path
    (path / "pids.max").write_text("max")
    until(
        lambda: not (path / "cgroup.procs").read_text(), "what a stopped daemon had started to end"
    )
    path.rmdir()


def exhaust(group: Path, daemon: Carmad) -> None:
    (group / "cgroup.procs").write_text(str(daemon.pid))
    (group / "pids.max").write_text("1")


def test_a_daemon_that_can_start_nothing_goes_on(group: Path, tmp_path: Path) -> None:
    with running(tmp_path, **NO_KERNELS) as daemon:
        exhaust(group, daemon)
        jobs = [daemon.sh("echo fine", memory_mib=100) for _ in range(3)]
        jobs.append(daemon.sh("echo fine"))  # its memory is to be estimated
        for path in ("health", "status", "jobs", "history", "stats", "gpus", f"jobs/{jobs[0]}/why"):
            assert daemon.call("GET", f"/v1/{path}")[0] == 200, path
        status, _ = daemon.call("POST", "/v1/estimate", daemon.submission("./none"))
        assert status == 200
        assert daemon.alive
        (group / "pids.max").write_text("max")
        for job in jobs:
            assert daemon.ended(job)["state"] == "succeeded"
        daemon.stop()


FORK_BOMB = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()  # away from its parent
    except OSError:
        print("full", flush=True)
        time.sleep(1000)
"""


def test_a_job_that_forks_until_nothing_can_be_started_is_killed(
    group: Path, tmp_path: Path
) -> None:
    with running(tmp_path, **NO_KERNELS) as daemon:
        (group / "cgroup.procs").write_text(str(daemon.pid))
        (group / "pids.max").write_text("700")
        other = daemon.sh("echo up; exec sleep 1000", memory_mib=100)
        daemon.await_output(other, "up")
        bomb = daemon.submit(sys.executable, "-c", FORK_BOMB, memory_mib=100)
        daemon.await_output(bomb, "full")
        waits = daemon.sh("echo fine", memory_mib=100)
        daemon.cancel(other)
        assert daemon.ended(other)["state"] == "cancelled"
        daemon.cancel(bomb)
        assert daemon.ended(bomb)["state"] == "cancelled"
        assert daemon.ended(waits)["state"] == "succeeded"
        daemon.clear_away()
        until(lambda: not (group / "cgroup.procs").read_text().strip(), "all to be gone")
