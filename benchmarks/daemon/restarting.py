"""What carmad's start, and each view, costs with what an earlier one left: nothing; 4,096 jobs that
have ended, each for itself or an array of 10,000; or 5,000 that wait beside 50 that run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.daemon import http, server
from benchmarks.daemon.carmad import SLEEPER, Daemon
from benchmarks.harness import Report, Row, main, milliseconds, of_rows, until
from carmad.config import Host, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask
from carmad.core.jobs.states import JobState, Over
from carmad.options import MAX_TASKS

ROWS = 4096  # of which the core remembers how they ended
QUEUED, RUNNING = 5000, 50
RUNS = 15
STARTS = 3
PATHS = {
    "status": "/v1/status",
    "every job": "/v1/jobs",
    "history, 100 jobs": "/v1/history?limit=100",
    "report": "/v1/report",
}
JOBS, ARRAYS = f"{ROWS:,} jobs ended", f"{ROWS:,} arrays of {MAX_TASKS:,} ended"
START_MS = 3000.0


def measure() -> Report:
    """Arrays that have ended may cost twice what as many single jobs cost."""
    found = {
        "empty": _figures([]),
        JOBS: _figures(list(_ended(1))),
        ARRAYS: _figures(list(_ended(MAX_TASKS))),
    }
    rows = [
        Row(
            name,
            what,
            value,
            "MB" if "RSS" in what else "ms",
            2 * found[JOBS][what] if name == ARRAYS else None,
        )
        for name, its in found.items()
        for what, value in its.items()
    ]
    busy = f"{QUEUED:,} jobs wait, {RUNNING} run"
    return of_rows("Restarts", [*rows, Row(busy, "start", _busy_start_ms(), "ms", START_MS)])


def _figures(jobs: list[Job]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as directory:
        server.write_waiting(Path(directory), jobs)
        with Daemon(Path(directory)) as daemon:
            found = {"start": _start_ms(daemon)}
            for what, path in PATHS.items():
                look = partial(http.get, daemon.socket, path)
                found[what] = statistics.median(milliseconds(look) for _ in range(RUNS))
            return found | {"RSS": daemon.rss_mb(), "RSS, most": daemon.peak_mb()}


def _busy_start_ms() -> float:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as directory:
        server.write_waiting(Path(directory), list(map(_waiting, range(1, QUEUED + 1))))
        plenty = Settings(host=Host(cpus=2 * RUNNING))
        with Daemon(Path(directory), settings=plenty) as daemon:
            running = [daemon.run(SLEEPER, gpus=0) for _ in range(RUNNING)]
            until(lambda: all(daemon.state(job) == "running" for job in running), "all to run")
            return _start_ms(daemon)


def _start_ms(daemon: Daemon) -> float:
    """After a crash."""
    taken = []
    for _ in range(STARTS):
        daemon.kill()
        taken.append(milliseconds(daemon.start))
    return statistics.median(taken)


def _ended(tasks: int) -> Iterator[Job]:
    for first in range(1, ROWS * tasks, tasks):
        task = ArrayTask(JobId(first), 0, tasks=tasks, more=tasks - 1) if tasks > 1 else None
        job = server.job(first)
        yield replace(
            job,
            spec=replace(job.spec, array=task),
            status=Over(JobState.CANCELLED, Exit(Cause.CANCELLED), server.BEGUN + first),
        )


def _waiting(id: int) -> Job:
    """Held, and another user's."""
    return replace(server.job(id), held=True)


if __name__ == "__main__":
    main("restarting", measure)
