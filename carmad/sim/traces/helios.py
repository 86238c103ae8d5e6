"""Imports SenseTime's Helios traces (Hu et al., SC '21): `cluster_log.csv` of a cluster.

The columns are those of the README in S-Lab-System-Group/HeliosData. Neither jobs nor
models are named.
"""

from __future__ import annotations

from pathlib import Path

from carmad.sim.task import Task, Trace
from carmad.sim.traces.rows import Row, Unusable, collect, read_rows

_COLUMNS = ("user", "gpu_num", "state", "submit_time", "start_time", "end_time")
# As counted by the traces' authors: the last two are failures, too.
_FAILED = {"COMPLETED": False, "CANCELLED": False, "FAILED": True, "TIMEOUT": True}
_FAILED["NODE_FAIL"] = True


def read(path: Path) -> Trace:
    """A cancelled job counts as complete. Jobs without GPUs are rejected."""
    return collect(path.parent.name or path.stem, read_rows(path, _COLUMNS), _task)


def _task(row: Row) -> Task:
    gpus = row.gpus("gpu_num")
    state = row.text("state")
    if state not in _FAILED:
        raise Unusable(f"state is {state!r}, but must be one of {', '.join(_FAILED)}")
    submitted, started, ended = map(row.moment, ("submit_time", "start_time", "end_time"))
    if started < submitted:
        raise Unusable("starts before it is submitted")
    if ended < started:
        raise Unusable("ends before it starts")
    return Task(
        name="",
        submit_s=submitted,
        duration_s=ended - started,
        gpus=gpus,
        user=row.text("user"),
        fails=_FAILED[state],
    )
