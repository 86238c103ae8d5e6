"""What may go down while jobs run: the daemon at any moment, supervisors, the machine, the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running
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
    print(f"{storm.kills} kills, {len(storm.acknowledged)} jobs")
