"""Imports what Slurm's `sacct` says of past jobs.

sacct -aX --parsable2 --starttime now-7days --format JobName,User,Submit,ElapsedRaw,State,AllocTRES

Memory and load are not in there: models are drawn, as for clusters' traces, one for each name.
"""

from __future__ import annotations

import re
from pathlib import Path

from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.rows import Row, Unusable, collect, read_rows

_COLUMNS = ("JobName", "User", "Submit", "ElapsedRaw", "State", "AllocTRES")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::[^=,]*)?=(\d{1,6})(?=,|$)")
_FAILED = ("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
_LIVE = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING")


def slurm(path: Path) -> Trace:
    """A job that was cancelled or met its time limit counts as complete. Those without GPUs, that
    never ran or have not ended are rejected."""
    return collect(path.stem, read_rows(path, _COLUMNS, delimiter="|"), _of_slurm)


def _of_slurm(row: Row) -> Task:
    state = row.text("State").partition(" ")[0]  # CANCELLED by 1000
    if state in _LIVE:
        raise Unusable(f"has not ended: it is {state}")
    found = _GPUS.findall(row.text("AllocTRES"))
    if not found:
        raise Unusable("asks for no GPU")
    duration_s = row.number("ElapsedRaw")
    if duration_s <= 0:
        raise Unusable("never ran")
    return Task(
        name=row.text("JobName"),
        submit_s=row.moment("Submit"),
        duration_s=duration_s,
        gpus=max(map(int, found)),  # the count of all kinds, and of each
        user=row.text("User"),
        fails=state in _FAILED,
    )
