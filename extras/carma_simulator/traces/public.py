"""Imports public traces of clusters: Microsoft's, SenseTime's and Alibaba's.

Neither jobs nor models are named in the first two; PAI's recurring jobs are named by their group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from carma_simulator.experiment import Rejected, Task, Trace
from carma_simulator.traces.rows import Row, Unusable, collect, read_rows

_PHILLY = ("timestamp", "duration", "num_gpus", "cluster")

_HELIOS = ("user", "gpu_num", "state", "submit_time", "start_time", "end_time")
# As counted by the traces' authors: the last two are failures, too.
_HELIOS_FAILED = {"COMPLETED": False, "CANCELLED": False, "FAILED": True, "TIMEOUT": True}
_HELIOS_FAILED["NODE_FAIL"] = True

_PAI_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_PAI_TASK = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_PAI_GROUP = ("inst_id", "user", "gpu_type_spec", "group", "workload")
# MISC covers several old kinds.
_PAI_KINDS = {"P100": "P100-16GB", "T4": "T4-16GB", "V100": "V100-16GB", "V100M32": "V100-32GB"}


def philly(path: Path) -> Trace:
    """Microsoft's Philly (Jeon et al., ATC '19) as the Sia artifact prepared it.

    Times are in the cluster's time zone, ignoring the end of summer time; `duration` is in seconds.
    A virtual cluster counts as a user.
    """
    return collect(path.stem, read_rows(path, _PHILLY), _of_philly)


def _of_philly(row: Row) -> Task:
    return Task(
        name="",
        submit_s=row.moment("timestamp"),
        duration_s=row.number("duration"),
        gpus=row.gpus("num_gpus"),
        user=row.text("cluster"),
    )


def helios(path: Path) -> Trace:
    """SenseTime's Helios (Hu et al., SC '21): `cluster_log.csv` of a cluster.

    The columns are those of the README in S-Lab-System-Group/HeliosData. A cancelled job counts as
    complete. Jobs without GPUs are rejected.
    """
    return collect(path.parent.name or path.stem, read_rows(path, _HELIOS), _of_helios)


def _of_helios(row: Row) -> Task:
    gpus = row.gpus("gpu_num")
    state = row.text("state")
    if state not in _HELIOS_FAILED:
        raise Unusable(f"state is {state!r}, but must be one of {', '.join(_HELIOS_FAILED)}")
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
        fails=_HELIOS_FAILED[state],
    )


@dataclass(frozen=True, slots=True)
class _Role:
    """A job's instances of one kind, such as its workers."""

    gpus: float
    started_s: float
    ended_s: float
    reference: str


def pai(directory: Path) -> Trace:
    """Alibaba's PAI of 2020 (Weng et al., NSDI '22): a directory of its tables.

    The columns are those of the README of cluster-trace-gpu-v2020 in alibaba/clusterdata. The
    tables have no headers. Sensor measurements are not read: models are drawn, as in A-SRPT.

    One task for each job: `pai_job_table.csv` joined with `pai_task_table.csv`. Its GPUs are those
    of all its instances, shares added up and rounded up; it lasts from the first of the roles that
    have GPUs to the end of the last. If `pai_group_tag_table.csv` exists, recurring jobs are named
    by their group. Lines are those of the job table, unless the reason names another one.
    """
    roles = _roles(directory)
    groups = _groups(directory)
    known: set[str] = set()

    def task(row: Row) -> Task:
        job, status = row.text("job_name"), row.text("status")
        known.add(job)
        if status not in ("Terminated", "Failed"):
            raise Unusable(f"has not ended: its status is {status!r}")
        used: list[_Role] = []
        for line, role in roles.get(job, []):
            if isinstance(role, Unusable):
                raise Unusable(f"{_of_task_table(line)}: {role}")
            used.append(role)
        if not used:
            raise Unusable("asks for no GPU")
        ended = max(role.ended_s for role in used)
        return Task(
            name=groups.get(row.text("inst_id")) or job,
            submit_s=row.number("start_time"),
            duration_s=ended - min(role.started_s for role in used),
            gpus=math.ceil(sum(role.gpus for role in used)),
            user=row.text("user"),
            reference=used[0].reference,
            fails=status == "Failed",
        )

    trace = collect(directory.name, _table(directory, "job", _PAI_JOB), task)
    lost = [lines[0][0] for job, lines in roles.items() if job not in known]
    why = "its job is not in pai_job_table.csv"
    strays = tuple(Rejected(line, f"{_of_task_table(line)}: {why}") for line in lost)
    return replace(trace, rejected=trace.rejected + strays)


def _table(directory: Path, name: str, header: tuple[str, ...]) -> Iterator[Row]:
    return read_rows(directory / f"pai_{name}_table.csv", (), header=header)


def _groups(directory: Path) -> dict[str, str]:
    if not (directory / "pai_group_tag_table.csv").exists():
        return {}
    rows = _table(directory, "group_tag", _PAI_GROUP)
    return {row.cells[0]: row.cells[3] for row in rows if len(row.cells) == len(_PAI_GROUP)}


def _roles(directory: Path) -> dict[str, list[tuple[int, _Role | Unusable]]]:
    """By job, the lines of its roles that have GPUs, and the errors of unusable ones."""
    by_job: dict[str, list[tuple[int, _Role | Unusable]]] = {}
    for row in _table(directory, "task", _PAI_TASK):
        try:
            role: _Role | Unusable | None = _role(row)
        except Unusable as error:
            role = error
        if role is not None:
            by_job.setdefault(row.cells[0], []).append((row.line, role))
    return by_job


def _of_task_table(line: int) -> str:
    return f"pai_task_table.csv, line {line}"


def _role(row: Row) -> _Role | None:
    """None if it uses no GPU."""
    gpus = row.number("plan_gpu") / 100 if row.text("plan_gpu") else 0.0
    if gpus == 0:
        return None
    started, ended = row.number("start_time"), row.number("end_time")
    if ended < started:
        raise Unusable("ends before it starts")
    reference = _PAI_KINDS.get(row.text("gpu_type"), "")
    return _Role(gpus * row.whole("inst_num"), started, ended, reference)
