"""A user has exhausted all processes: the daemon keeps answering, and loses nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running

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
