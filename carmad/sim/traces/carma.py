"""Imports the traces of the CARMA evaluation: submissions of the tasks in `tasks.csv` beside them.

They include measurements on an A100-40GB, and three estimators' estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from carmad.errors import CarmaError
from carmad.sim.catalogue import find
from carmad.sim.task import Load, Task, Trace
from carmad.sim.traces.rows import Row, Unusable, collect, read_rows

_TASKS = (
    *("task", "model", "dataset", "batch_size", "gpus", "duration_s", "mem_mib"),
    *("horus_mib", "faketensor_mib", "gpumemnet_mib"),
)
_ESTIMATORS = ("horus", "faketensor", "gpumemnet")
_NO_ESTIMATE_MIB = 40_000


def read(path: Path) -> Trace:
    """Times are in seconds, memory in MiB per GPU."""
    table = path.parent / "tasks.csv"
    try:
        rows = [(row.text("task"), row) for row in read_rows(table, _TASKS)]
    except Unusable as error:
        raise CarmaError(f"{table}: a row {error}") from None
    tasks = dict(rows)
    for name, row in rows:
        if tasks[name] is not row:
            lines = f"lines {row.line} and {tasks[name].line}"
            raise CarmaError(f"{table} has two tasks called {name!r}: {lines}", "rename one")
    submissions = read_rows(path, ("submit_s", "task"))
    return collect(f"carma-{path.stem}", submissions, lambda row: _task(row, tasks))


def _task(row: Row, tasks: Mapping[str, Row]) -> Task:
    name, submit_s = row.text("task"), row.number("submit_s")
    if name not in tasks:
        raise Unusable(f"is of {name!r}, which is not in tasks.csv")
    try:
        return _of(tasks[name], submit_s)
    except Unusable as error:
        raise Unusable(f"tasks.csv, line {tasks[name].line}: {error}") from None


def _of(row: Row, submit_s: float) -> Task:
    model, batch_size = row.text("model"), row.whole("batch_size")
    load = find(model, batch_size, row.text("dataset")) or Load(model)
    answers = [(name, round(row.number(f"{name}_mib"))) for name in _ESTIMATORS]
    return Task(
        name=row.text("task"),
        submit_s=submit_s,
        duration_s=row.number("duration_s"),
        gpus=row.gpus("gpus"),
        load=replace(load, batch_size=batch_size, memory_mib=round(row.number("mem_mib"))),
        reference="A100-40GB",
        estimates=tuple((name, mib) for name, mib in answers if mib != _NO_ESTIMATE_MIB),
    )
