"""Imports Microsoft's Philly trace (Jeon et al., ATC '19) as the Sia artifact prepared it.

Times are in the cluster's time zone, ignoring the end of summer time. Neither jobs
nor models are named.
"""

from __future__ import annotations

from pathlib import Path

from carmad.sim.task import Task, Trace
from carmad.sim.traces.rows import Row, collect, read_rows

_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read(path: Path) -> Trace:
    """A virtual cluster counts as a user. `duration` is in seconds."""
    return collect(path.stem, read_rows(path, _COLUMNS), _task)


def _task(row: Row) -> Task:
    return Task(
        name="",
        submit_s=row.moment("timestamp"),
        duration_s=row.number("duration"),
        gpus=row.gpus("num_gpus"),
        user=row.text("cluster"),
    )
