"""The wall clock is changed while carmad is down: time limits stay the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from carmad.store import codec
from tests.daemon import NO_KERNELS, Carmad, running, until

HOURS_2 = 7200.0


def set_the_wall(daemon: Carmad, by_s: float) -> None:
    """As seen by the next daemon: the wall clock of the last one was behind."""
    with closing(sqlite3.connect(daemon.state / "carma.db")) as database, database:
        database.execute("UPDATE clock SET ahead_s = ahead_s - ?", (by_s,))
        rows = database.execute("SELECT id, body FROM jobs WHERE ended_at IS NULL").fetchall()
        for id, body in rows:
            job = codec.decode_job(body).shift(-by_s)
            database.execute("UPDATE jobs SET body = ? WHERE id = ?", (codec.encode_job(job), id))


@pytest.mark.parametrize("by_s", [HOURS_2, -HOURS_2])
def test_a_time_limit_is_met_on_time(tmp_path: Path, by_s: float) -> None:
    with running(tmp_path, **NO_KERNELS) as daemon:
        long = daemon.sh("echo up; exec sleep 1000", time_limit_s=3600)
        short = daemon.sh("echo up; exec sleep 1000", time_limit_s=3)
        for job in (long, short):
            daemon.await_output(job, "up")
        begun = daemon.job(long)["started_at"]
        daemon.stop()
        set_the_wall(daemon, by_s)
        daemon.start()
        assert daemon.job(long)["started_at"][:19] == begun[:19]  # by the wall as it is now
        assert daemon.ended(short)["state"] == "timed_out"
        assert daemon.job(long)["state"] in ("starting", "running")
        daemon.cancel(long)
        ended = daemon.ended(long)
        assert ended["ended_at"] > ended["started_at"]
        until(lambda: not daemon.processes(), "all to be gone")
