"""Traces in CARMA's own format, as CSV or Parquet: a row is a task, a column one of its fields.

The fields of the load are columns, too, and estimates are in `estimate_NAME_mib`. A missing column
or an empty number means the field's default. `layout` and `stages` are in the form of
`carma submit`, with | between several.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from carmad import layout_text
from carmad.core.layout import Layout, Stage
from carmad.core.types import StageTimes
from carmad.errors import CarmaError
from carmad.layout_text import BETWEEN, OF_STAGE, OF_TIMES
from carmad.sim.task import Load, Task, Trace
from carmad.sim.traces.rows import Known, Row, Unusable, collect, places, read_rows

_Cell = str | int | float | bool | None


def _flag(row: Row, column: str) -> bool:
    text = row.text(column).lower()
    if text not in ("true", "false"):
        raise Unusable(f"{column} is {text!r}, but must be true or false")
    return text == "true"


def _layout(row: Row, column: str) -> Layout:
    text = row.text(column)
    tree = text.startswith(_TREE)
    parts = _parts(column, text.removeprefix(_TREE), layout_text.stage)
    return Layout(tuple(Stage(**part) for part in parts), "tree" if tree else "ring")


def _stages(row: Row, column: str) -> tuple[StageTimes, ...]:
    parts = _parts(column, row.text(column), layout_text.stage_times)
    return tuple(StageTimes(**part) for part in parts)


def _parts(
    column: str, text: str, read: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for part in text.split(BETWEEN):
        try:
            yield read(part)
        except ValueError as error:
            raise Unusable(f"{column}: {error}") from None


_TREE = "tree: "
_REQUIRED = ("name", "submit_s", "duration_s")
_READERS: dict[str, Callable[[Row, str], Any]] = {
    "name": Row.text,
    "submit_s": Row.number,
    "duration_s": Row.number,
    "gpus": Row.gpus,
    "user": Row.text,
    "model": Row.text,
    "batch_size": Row.whole,
    "memory_mib": Row.whole,
    "sm_active": Row.number,
    "sm_occupancy": Row.number,
    "dram_active": Row.number,
    "reference": Row.text,
    "layout": _layout,
    "iteration_s": Row.number,
    "stages": _stages,
    "expected_s": Row.number,
    "deadline_s": Row.number,
    "time_limit_s": Row.number,
    "declared_mib": Row.whole,
    "exclusive": _flag,
    "fails": _flag,
}
_OF_LOAD = {"model", "batch_size", "memory_mib", "sm_active", "sm_occupancy", "dram_active"}
_BEFORE, _AFTER = "estimate_", "_mib"


def read(path: Path) -> Trace:
    """Read a file from `write`, or format_fields by hand. The trace has the file's name.

    Raises CarmaError for a file that cannot be read, and for unknown columns.
    """
    rows = _parquet_rows(path) if _is_parquet(path) else read_rows(path, _REQUIRED, _KNOWN)
    return collect(path.stem, rows, _task)


def write(trace: Trace, path: Path) -> None:
    """Write the tasks, without rejected rows and without columns that only have defaults.

    If all tasks have their estimates in the same order, it is kept.
    """
    try:
        if _is_parquet(path):
            arrow, parquet = _arrow()
            parquet.write_table(arrow.table(_table(trace.tasks)), path)
            return
        with path.open("w", encoding="utf-8", newline="") as file:
            write_csv(trace, file)
    except OSError as error:
        raise CarmaError(f"cannot write {path}: {error.strerror or error}") from error


def write_csv(trace: Trace, file: TextIO) -> None:
    """Like `write`, to a text file."""
    table = _table(trace.tasks)
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(table)
    lines.writerows([map(_text, cells) for cells in zip(*table.values(), strict=True)])


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _is_known(column: str) -> bool:
    return column in _READERS or _estimator(column) is not None


def _estimator(column: str) -> str | None:
    """The estimator whose estimates are in this column, if any."""
    if not (column.startswith(_BEFORE) and column.endswith(_AFTER)):
        return None
    return column[len(_BEFORE) : -len(_AFTER)] or None


_KNOWN = Known((*_READERS, f"{_BEFORE}NAME{_AFTER}"), _is_known)


def _task(row: Row) -> Task:
    of_task: dict[str, Any] = {}
    of_load: dict[str, Any] = {}
    estimates: list[tuple[str, int]] = []
    if not row.text("name"):
        raise Unusable("has no name")
    for column in row.where:
        reader = _READERS.get(column, Row.whole)
        if row.text(column) == "" and reader is not Row.text and column not in _REQUIRED:
            continue
        value = reader(row, column)
        if name := _estimator(column):
            estimates.append((name, value))
        else:
            (of_load if column in _OF_LOAD else of_task)[column] = value
    return Task(**of_task, load=Load(**of_load), estimates=tuple(estimates))


def _table(tasks: tuple[Task, ...]) -> dict[str, list[_Cell]]:
    default = Task(name="", submit_s=0.0, duration_s=0.0)
    table: dict[str, list[_Cell]] = {}
    for column in _READERS:
        cells = [_value(task, column) for task in tasks]
        usual = _value(default, column)
        if column in _REQUIRED or any(cell != usual for cell in cells):
            table[column] = cells
    answers = [dict(task.estimates) for task in tasks]
    for name in dict.fromkeys(name for task in tasks for name, _ in task.estimates):
        table[f"{_BEFORE}{name}{_AFTER}"] = [mib.get(name) for mib in answers]
    return table


def _value(task: Task, column: str) -> _Cell:
    if column == "layout" and task.layout:
        tree = _TREE if task.layout.allreduce == "tree" else ""
        return tree + _written(task.layout.stages, OF_STAGE)
    if column == "stages":
        return _written(task.stages, OF_TIMES)
    value: _Cell = getattr(task.load if column in _OF_LOAD else task, column)
    return value


def _written(stages: Sequence[Stage | StageTimes], words: dict[str, str]) -> str:
    return f" {BETWEEN} ".join(layout_text.format_fields(asdict(stage), words) for stage in stages)


def _text(value: _Cell) -> str:
    """A text that reads back as exactly the same value."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case _:
            return str(value)


def _parquet_rows(path: Path) -> Iterator[Row]:
    """The cells as in CSV, so that tasks are read in only one way."""
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise CarmaError(f"cannot read {path}: {error}", "is it a Parquet file?") from error
    where = places(path, table.column_names, _REQUIRED, _KNOWN)
    cells = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for line, values in enumerate(cells, start=1):
        yield Row(line, where, [_text(value) for value in values])


def _arrow() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, imported only when needed."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise CarmaError("Parquet files need pyarrow", "pip install 'carma-gpu[sim]'") from error
