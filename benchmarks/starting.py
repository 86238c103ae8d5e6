"""From the moment a submission is sent until the job's program runs, on an idle server."""

from __future__ import annotations

import statistics
import time

from benchmarks.daemon import Daemon
from benchmarks.rows import Row, of_runs, percentile

GROUP = "submit to start"
JOBS = 20
RUNS = 3


def measure() -> list[Row]:
    with Daemon() as daemon:
        for _ in range(3):
            start_ms(daemon)
        runs = [[start_ms(daemon) for _ in range(JOBS)] for _ in range(RUNS)]
    note = f"{JOBS} jobs a run; ends when `date` has begun"
    medians = [statistics.median(run) for run in runs]
    return [
        of_runs(GROUP, "p50", medians, "ms", bound=60, note=note),
        of_runs(GROUP, "p90", [percentile(run, 0.9) for run in runs], "ms"),
    ]


def start_ms(daemon: Daemon) -> float:
    """The job itself writes down when it started; its own start-up is in the number."""
    stamp = daemon.directory / "stamp"
    stamp.unlink(missing_ok=True)
    begun = time.time_ns()
    daemon.run(["/bin/date", "+%s%N"], stdout=str(stamp))
    while not (stamp.exists() and (text := stamp.read_text()).endswith("\n")):
        time.sleep(0.002)
    daemon.await_idle()
    return (int(text) - begun) / 1e6
