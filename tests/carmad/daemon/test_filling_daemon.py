"""Fillers on a real daemon with emulated GPUs: nobody gives a --time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running, train, until
from tests.storm import SUSPENDS

SHARING = {
    "CARMA_SUSPEND__MOVES": "true",
    "CARMA_LIMITS__PREEMPTION": "suspend",
    "CARMA_MONITOR__WINDOW_S": "0.5",
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS, **SUSPENDS, **SHARING) as carmad:
        yield carmad


def submit(daemon: Carmad, gib: int, seconds: float, **spec: object) -> int:
    """A job that holds little, and is promised so many GiB."""
    script = train(memory_mib=1000, seconds=seconds, warmup=0.1, sm=0.1, dram=0.1)
    return daemon.submit(*script, memory_mib=gib * 1024, **spec)


def where(daemon: Carmad, id: int) -> list[int]:
    return [gpu["index"] for gpu in daemon.job(id)["gpus"]]


def states(daemon: Carmad, id: int) -> list[str]:
    return [move["after"] for move in daemon.job(id)["history"]]


def test_a_small_job_fills_what_a_large_one_waits_for_and_leaves_for_it(daemon: Carmad) -> None:
    three = []
    for _ in range(3):
        three.append(submit(daemon, 8, 600))
        daemon.await_state(three[-1], "running")
    large = submit(daemon, 36, 1)
    until(lambda: daemon.why(large)["verdicts"], "the large one to be looked at")
    small = submit(daemon, 6, 8)
    daemon.await_state(small, "running")
    said = daemon.why(large)["headline"]
    assert "later jobs may use the GPUs, and are suspended for it" in said
    grounds = str(daemon.why(small)["grounds"])
    assert f"it goes before job {large}, and is suspended when that can start" in grounds
    daemon.kill()
    daemon.start()  # which knows that it is a filler
    for id in three:
        if where(daemon, id) == where(daemon, small):
            daemon.cancel(id)
    assert daemon.ended(large)["state"] == "succeeded"
    ended = daemon.ended(small)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1)
    assert "suspended" in states(daemon, small)


def test_a_reservation_ahead_closes_no_gpu_to_jobs_of_unknown_length(daemon: Carmad) -> None:
    daemon.carma("reserve", "--gpus", "2", "--users", "nobody", "--from", "now+2h", "--for", "1h")
    early = submit(daemon, 8, 1)
    assert daemon.ended(early)["state"] == "succeeded"


def test_it_is_suspended_when_the_reservation_begins_and_resumes_after_it(
    daemon: Carmad,
) -> None:
    daemon.carma("reserve", "--gpus", "2", "--users", "nobody", "--from", "now+6s", "--for", "1m")
    id = submit(daemon, 8, 9)
    daemon.await_state(id, "running")
    daemon.await_state(id, "suspended")
    why = daemon.why(id)
    assert "for a reservation (nobody)" in daemon.job(id)["suspension"]["why"], why
    daemon.carma("reserve", "--cancel", "1")
    ended = daemon.ended(id)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1)
