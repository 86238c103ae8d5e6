"""From the moment a submission is sent until the job's program runs, on an idle server; and from
the start of the daemon until it answers.

Between submission and start lie two commits and the start of the job's supervisor. A Python started
right before each job shows how much of the time is the machine's.
"""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.daemon.carmad import Daemon, plain_environment
from benchmarks.daemon.submitting import run_ms
from benchmarks.harness import Row, of_runs, percentile

GROUP = "submit to start"
DAEMON = "start of the daemon"
JOBS = 20
RUNS = 3
BARE = [sys.executable, "-I", "-S", "-c", "pass"]  # how the supervisor's interpreter is begun


def measure() -> list[Row]:
    runs: list[list[float]] = []
    bare: list[float] = []
    with Daemon() as daemon:
        for _ in range(3):
            start_ms(daemon)
        up: list[float] = []
        for _ in range(RUNS):
            daemon.kill()
            begun = time.perf_counter()
            daemon.start()
            up.append(time.perf_counter() - begun)
            runs.append([])
            for _ in range(JOBS):
                bare.append(run_ms(BARE, plain_environment()))
                runs[-1].append(start_ms(daemon))
    note = f"{JOBS} jobs a run; until `date` reads the clock"
    medians = [statistics.median(run) for run in runs]
    return [
        Row(GROUP, "a bare `python -I -S`, for scale: p50", statistics.median(bare), "ms"),
        of_runs(GROUP, "p50", medians, "ms", bound=60, note=note),
        of_runs(DAEMON, "until it answers", up, "s", bound=1.5, note="after a crash"),
        of_runs(GROUP, "p90", [percentile(run, 0.9) for run in runs], "ms"),
    ]


def start_ms(daemon: Daemon) -> float:
    """The job itself writes down when it started; its own start-up is included."""
    stamp = daemon.directory / "stamp"
    stamp.unlink(missing_ok=True)
    begun = time.time_ns()
    daemon.run(["/bin/date", "+%s%N"], stdout=str(stamp))
    while not (stamp.exists() and (text := stamp.read_text()).endswith("\n")):
        time.sleep(0.002)
    daemon.await_idle()
    return (int(text) - begun) / 1e6
