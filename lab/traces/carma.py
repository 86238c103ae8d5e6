"""Imports the traces of the CARMA evaluation, measured on a DGX Station's A100s of 40 GB.

Submissions of the tasks in the paper's Table 4 (`tasks.csv` beside them; with the answers of three
memory estimators), or of a run whose tasks were measured themselves (`heavy60_tasks.csv` beside
`heavy60.csv`: SMACT, duration and memory alone, from the artifact's figures).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from carma_simulator.catalogue import load_of
from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.rows import Row, Unusable, collect, read_rows
from carmad.errors import CarmaError

_TABLE_4: tuple[str, ...] = (
    *("task", "model", "dataset", "batch_size", "gpus", "duration_s", "mem_mib"),
    *("horus_mib", "faketensor_mib", "gpumemnet_mib"),
)
_MEASURED: tuple[str, ...] = (
    *("task", "model", "batch_size", "gpus"),
    *("smact", "duration_s", "memory_gb"),
)
_ESTIMATORS = ("horus", "faketensor", "gpumemnet")
_NO_ESTIMATE_MIB = 40_000
_REFERENCE = "DGX-Station-A100-40GB"

ToTask = Callable[[Row, float], Task]


def read(path: Path) -> Trace:
    """Times are in seconds, memory in MiB or GB (1,000 MiB, as in the paper) per GPU."""
    table = path.with_name(f"{path.stem}_tasks.csv")
    if table.exists():
        columns, submit_column, to_task = _MEASURED, "seconds", _measured
    else:
        table = path.with_name("tasks.csv")
        columns, submit_column, to_task = _TABLE_4, "submit_s", _of_table_4
    try:
        rows = [(row.text("task"), row) for row in read_rows(table, columns)]
    except Unusable as error:
        raise CarmaError(f"{table}: a row {error}") from None
    tasks = dict(rows)
    for name, row in rows:
        if tasks[name] is not row:
            lines = f"lines {row.line} and {tasks[name].line}"
            raise CarmaError(f"{table} has two tasks called {name!r}: {lines}", "rename one")
    made = partial(_task, tasks=tasks, table=table.name, at=submit_column, to_task=to_task)
    return collect(f"carma-{path.stem}", read_rows(path, (submit_column, "task")), made)


def _task(row: Row, tasks: Mapping[str, Row], table: str, at: str, to_task: ToTask) -> Task:
    name, submit_s = row.text("task"), row.number(at)
    if name not in tasks:
        raise Unusable(f"is of {name!r}, which is not in {table}")
    try:
        return to_task(tasks[name], submit_s)
    except Unusable as error:
        raise Unusable(f"{table}, line {tasks[name].line}: {error}") from None


def _of_table_4(row: Row, submit_s: float) -> Task:
    model, batch_size = row.text("model"), row.whole("batch_size")
    load = load_of(model, batch_size, row.text("dataset"))
    answers = [(name, round(row.number(f"{name}_mib"))) for name in _ESTIMATORS]
    return Task(
        name=row.text("task"),
        submit_s=submit_s,
        duration_s=row.number("duration_s"),
        gpus=row.gpus("gpus"),
        load=replace(load, batch_size=batch_size, memory_mib=round(row.number("mem_mib"))),
        reference=_REFERENCE,
        estimates=tuple((name, mib) for name, mib in answers if mib != _NO_ESTIMATE_MIB),
    )


def _measured(row: Row, submit_s: float) -> Task:
    """SMOCC and DRAMA are the catalogue's, in proportion: the same kernels in more or less time."""
    model = row.text("model")
    batch_size = row.whole("batch_size") if row.text("batch_size") else 0
    load = load_of(model, batch_size)
    busier = row.number("smact") / load.sm_active
    return Task(
        name=row.text("task"),
        submit_s=submit_s,
        duration_s=row.number("duration_s"),
        gpus=row.gpus("gpus"),
        load=replace(
            load,
            batch_size=batch_size,
            memory_mib=round(1000 * row.number("memory_gb")),
            sm_active=row.number("smact"),
            sm_occupancy=load.sm_occupancy * busier,
            dram_active=load.dram_active * busier,
        ),
        reference=_REFERENCE,
    )
