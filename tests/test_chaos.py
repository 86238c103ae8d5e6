"""What may go down while jobs run: the daemon at any moment, supervisors, the machine, the disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, UNREACHABLE, Carmad, running
from tests.storm import GPUS, Storm

SEED = int(os.environ.get("STORM_SEED", time.time_ns() % 1_000_000))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Carmad]:
    """A daemon that has not been started."""
    carmad = Carmad(tmp_path, f"{GPUS}xA100-40GB", **NO_KERNELS)
    yield carmad
    carmad.clear_away()


# -- kill -9 of the daemon


def test_fifty_kills_lose_no_job_and_start_none_twice(port: Carmad) -> None:
    storm = Storm(port, SEED)
    try:
        storm.rage(kills=50)
        storm.settle(within_s=90)
        port.stop()
        storm.check()
    except BaseException:
        print(f"STORM_SEED={SEED} after {storm.kills} kills; the daemons' log: {port.log}")
        print(port.log.read_text()[-8000:])
        raise


def test_the_storm_notices_a_daemon_that_forgets_what_is_owed(port: Carmad) -> None:
    """It recovers everything but the actions of a step that was committed and not carried out."""
    storm = Storm(port, SEED, forgetful=True)
    with pytest.raises(AssertionError):  # noqa: PT012
        storm.rage(kills=12)
        storm.settle(within_s=15)
        port.stop()
        storm.check()


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_what_a_step_owes_is_done_after_a_crash(port: Carmad, commits: int) -> None:
    """Death right after each commit of a job's life: discovery, submission, start, end."""
    port.start(crash_after=commits, wait=False)
    submitted = False
    while port.alive:
        with contextlib.suppress(*UNREACHABLE):
            submitted = submitted or bool(port.sh("echo once >> begun; exit 7"))
        time.sleep(0.02)
    port.start()
    if port.get("/v1/history")["jobs"] or port.get("/v1/jobs")["jobs"]:
        assert port.ended(1)["exit"]["code"] == 7
        assert (port.work / "begun").read_text() == "once\n"
    else:
        assert not submitted
