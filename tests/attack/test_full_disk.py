"""A full state disk: jobs can still be stopped, by their owners and by their limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.carmad.daemon.test_chaos import fill, small_file_system
from tests.daemon import NO_KERNELS, Carmad, Json, running, until


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "state") as disk:
        yield disk


@pytest.fixture
def daemon(tmp_path: Path, disk: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


def leave_no_room(disk: Path, daemon: Carmad) -> Path:
    """Neither in the file system nor in SQLite's existing blocks."""
    held = daemon.sh("true", held=True)
    ballast = fill(disk)

    def refused() -> bool:
        for act in ("release", "hold"):
            if daemon.call("POST", f"/v1/{act}", {"select": str(held)})[0] == 503:
                return True
        return False

    until(refused, "the disk to be full for the smallest of changes")
    return ballast


def alive(daemon: Carmad, id: int) -> bool:
    mark = f"CARMA_JOB_ID={id}\0".encode()
    for pid in daemon.processes():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                return True
        except OSError:
            pass
    return False


def test_a_job_is_cancelled_and_that_is_recorded_once_there_is_room(
    disk: Path, daemon: Carmad
) -> None:
    runs = [daemon.sh("echo up; exec sleep 1000") for _ in range(2)]
    for job in runs:
        daemon.await_output(job, "up")
    queued = daemon.sh("true", held=True)
    ballast = leave_no_room(disk, daemon)

    told = daemon.carma("cancel", str(runs[0]))
    assert "is being stopped" in told
    until(lambda: not alive(daemon, runs[0]), "its processes to end")
    status, out = daemon.call("POST", "/v1/cancel", {"select": str(queued)})
    assert status == 503 and "Free space" in out["hint"]
    both: list[Json] = daemon.post("/v1/cancel", {"select": f"{queued},{runs[1]}"})["results"]
    assert {each["id"]: each["ok"] for each in both} == {queued: False, runs[1]: True}
    until(lambda: not alive(daemon, runs[1]), "its processes to end")
    assert daemon.log.read_text().count("cannot record events") <= 1

    daemon.kill()  # and with it all that it knew
    daemon.start()
    ballast.unlink()
    for job in runs:
        found = daemon.ended(job)
        assert (found["state"], found["exit"]["cause"]) == ("cancelled", "cancelled")
    assert daemon.job(queued)["state"] == "queued"


def test_a_time_limit_holds(disk: Path, daemon: Carmad) -> None:
    job = daemon.sh("echo up; exec sleep 1000", time_limit_s=3)
    daemon.await_output(job, "up")
    ballast = leave_no_room(disk, daemon)
    until(lambda: not alive(daemon, job), "its processes to end")
    assert daemon.job(job)["state"] in ("starting", "running")
    daemon.kill()
    ballast.unlink()
    daemon.start()
    found = daemon.ended(job)
    assert (found["state"], found["exit"]["cause"]) == ("timed_out", "time_limit")
