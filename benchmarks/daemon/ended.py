"""What arrays that have ended cost: carmad with 4,096 rows of 10,000 cancelled tasks in its
database, beside one with as many rows of single jobs, and an empty one."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.daemon import http, server
from benchmarks.daemon.carmad import Daemon
from benchmarks.harness import Report, Row, main, milliseconds, of_rows
from carmad.core.types import ArrayTask, Cause, Exit, Job, JobId, JobState
from carmad.options import MAX_TASKS

ROWS = 4096  # of which the core remembers how they ended
RUNS = 15
PATHS = {
    "status": "/v1/status",
    "every job": "/v1/jobs",
    "history, 100 jobs": "/v1/history?limit=100",
    "report": "/v1/report",
}
ENDED = {"empty": (0, 1), "4,096 jobs": (ROWS, 1), "4,096 arrays of 10,000": (ROWS, MAX_TASKS)}


def measure() -> Report:
    """The bound of each figure: twice that of as many single jobs."""
    found = {name: _figures(*its) for name, its in ENDED.items()}
    bounds = {what: 2 * value for what, value in found["4,096 jobs"].items()}
    rows = [
        Row(name, what, value, "MB" if "RSS" in what else "ms", bounds[what] if last else None)
        for name, its in found.items()
        for last in [name == list(ENDED)[-1]]
        for what, value in its.items()
    ]
    return of_rows("Arrays that have ended", rows)


def _figures(rows: int, tasks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as directory:
        server.write_waiting(Path(directory), list(_ended(rows, tasks)))
        begun = time.perf_counter()
        with Daemon(Path(directory)) as daemon:
            found = {"start": 1000 * (time.perf_counter() - begun)}
            for what, path in PATHS.items():
                found[what] = statistics.median(
                    milliseconds(partial(http.get, daemon.socket, path)) for _ in range(RUNS)
                )
            return found | {"RSS": daemon.rss_mb(), "RSS, most": daemon.peak_mb()}


def _ended(rows: int, tasks: int) -> Iterator[Job]:
    for first in range(1, rows * tasks, tasks):
        task = ArrayTask(JobId(first), 0, tasks=tasks, more=tasks - 1) if tasks > 1 else None
        job = server.job(first)
        yield replace(
            job,
            spec=replace(job.spec, array=task),
            state=JobState.CANCELLED,
            exit=Exit(Cause.CANCELLED),
            ended_at=server.BEGUN + first,
        )


if __name__ == "__main__":
    main("ended", measure)
