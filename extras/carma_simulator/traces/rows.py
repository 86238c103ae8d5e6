"""Turns rows of files into a trace: each is a task, or rejected with the reason. And traces in
CARMA's own format, as CSV or Parquet; the readers of other formats define what their columns mean.

In CARMA's own, a row is a task, a column one of its fields. The fields of the load are columns,
too, and estimates are in `estimate_NAME_mib`. A missing column or an empty number means the field's
default. `layout` and `stages` are in the form of `carma submit`, with | between several.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from carma_simulator.experiment import Load, Rejected, Task, Trace
from carmad import layout_text
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Layout, Stage
from carmad.errors import CarmaError
from carmad.installed import how_to_add
from carmad.layout_text import BETWEEN, OF_STAGE, OF_TIMES
from carmad.options import MAX_TIME_S

LATEST_S = 1e10  # Unix time in the year 2286


class Unusable(Exception):
    """Why a row cannot be used, in words that follow its line number."""


@dataclass(frozen=True, slots=True)
class Known:
    """The only columns that a file may have."""

    columns: Sequence[str]  # for people; NAME stands for any name
    matches: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """The getters raise Unusable."""

    line: int  # its first line, counted from 1
    where: Mapping[str, int]  # column indices by name
    cells: Sequence[str]

    def text(self, column: str) -> str:
        if len(self.cells) != len(self.where):
            raise Unusable(f"has {len(self.cells)} cells, but must have {len(self.where)}")
        return self.cells[self.where[column]]

    def number(self, column: str) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise Unusable(f"{column} is {text!r}, but must be a number") from None
        if not math.isfinite(value):
            raise Unusable(f"{column} is {text}, but must be a finite number")
        return value

    def whole(self, column: str) -> int:
        value = self.number(column)
        if not value.is_integer():
            raise Unusable(f"{column} is {self.text(column)}, but must be a whole number")
        return int(value)

    def gpus(self, column: str) -> int:
        """GPUs of the whole task."""
        count = self.whole(column)
        if count < 1:
            raise Unusable(f"asks for {count} GPUs" if count else "asks for no GPU")
        return count

    def moment(self, column: str) -> float:
        """An ISO 8601 date and time in Unix seconds; assumed to be UTC."""
        text = self.text(column)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise Unusable(f"{column} is {text!r}, but must be a date and time") from None


def read_rows(
    path: Path,
    required: Sequence[str],
    known: Known | None = None,
    header: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Iterator[Row]:
    """The rows of a CSV file. `header` names the columns of a file without a header.

    Raises CarmaError for a file that cannot be read, and for what `places` rejects.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=delimiter)
            where = places(path, header or next(lines, []), required, known)
            line = lines.line_num + 1
            for cells in lines:
                if cells:
                    yield Row(line, where, cells)
                line = lines.line_num + 1
    except OSError as error:
        raise CarmaError(f"cannot read {path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise CarmaError(f"{path} is not a CSV file: {error}", "is it compressed?") from error


def places(
    path: Path, header: Sequence[str], required: Sequence[str], known: Known | None
) -> dict[str, int]:
    """Column indices by name. Raises CarmaError for missing, duplicate or unknown columns."""
    strange = [name for name in header if known and not known.matches(name)]
    for wrong, names in (
        ("lacks the columns", [name for name in required if name not in header]),
        ("has more than one column", [name for name, n in Counter(header).items() if n > 1]),
        ("has unknown columns", strange),
    ):
        if names:
            hint = f"its columns are {', '.join(header)}" if header else "it is empty"
            if known and names is strange:
                hint = f"known: {', '.join(known.columns)}"
            raise CarmaError(f"{path} {wrong}: {', '.join(names)}", hint)
    return {name: place for place, name in enumerate(header)}


def configuration(model: str, batch_size: int) -> str:
    """The name of a job where a trace has none: profiles and durations are learned by name, so runs
    of the same configuration share it."""
    return f"{model}-b{batch_size}"


def collect(name: str, rows: Iterable[Row], to_task: Callable[[Row], Task]) -> Trace:
    """`to_task` may count `submit_s` from any instant, and raise Unusable."""
    tasks: list[Task] = []
    rejected: list[Rejected] = []
    for row in rows:
        try:
            task = to_task(row)
            check(task)
        except Unusable as error:
            rejected.append(Rejected(row.line, str(error)))
        else:
            tasks.append(task)
    return in_order(name, tasks, rejected)


def in_order(name: str, tasks: Iterable[Task], rejected: Iterable[Rejected] = ()) -> Trace:
    """The tasks in order of submission, the first one submitted at 0."""
    ranked = sorted(tasks, key=lambda task: task.submit_s)
    begin = ranked[0].submit_s if ranked else 0.0
    if begin != 0:
        ranked = [replace(task, submit_s=task.submit_s - begin) for task in ranked]
    return Trace(name, tuple(ranked), tuple(rejected))


def check(task: Task) -> None:
    """Raises Unusable for a task with invalid values."""
    for what, value in (
        ("duration_s", task.duration_s),
        ("expected_s", task.expected_s),
        ("deadline_s", task.deadline_s),
        ("time_limit_s", task.time_limit_s),
        ("declared_mib", task.declared_mib),
        *((f"the estimate {name}", mib) for name, mib in task.estimates),
    ):
        if value is not None and value <= 0:
            raise Unusable(f"{what} is {value:g}, but must be more than 0")
        if value is not None and what.endswith("_s") and value > MAX_TIME_S:
            raise Unusable(f"{what} is {value:g}, but must be at most 10 years")
    if abs(task.submit_s) > LATEST_S:
        raise Unusable(f"submit_s is {task.submit_s:g}, but must be at most {LATEST_S:g}")
    if task.iteration_s < 0:
        raise Unusable(f"iteration_s is {task.iteration_s:g}, but must be 0 or more")
    if task.layout and task.layout.gpus != task.gpus:
        raise Unusable(f"its layout needs {task.layout.gpus} GPUs, but it asks for {task.gpus}")
    if task.load.memory_mib < 0:
        raise Unusable(f"memory_mib is {task.load.memory_mib}, but must be 0 or more")
    for what, share in (
        ("sm_active", task.load.sm_active),
        ("sm_occupancy", task.load.sm_occupancy),
        ("dram_active", task.load.dram_active),
    ):
        if not 0 <= share <= 1:
            raise Unusable(f"{what} is {share:g}, but must be between 0 and 1")


# -- CARMA's own format

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
    "has_kernels": _flag,
}
_OF_LOAD = {"model", "batch_size", "memory_mib", "sm_active", "sm_occupancy", "dram_active"}
_BEFORE, _AFTER = "estimate_", "_mib"


def read_trace(path: Path) -> Trace:
    """Read a file from `write`, or format_fields by hand. The trace has the file's name.

    Raises CarmaError for a file that cannot be read, and for unknown columns.
    """
    rows = _parquet_rows(path) if _is_parquet(path) else read_rows(path, _REQUIRED, _KNOWN)
    return collect(path.stem, rows, _task)


def write_trace(trace: Trace, path: Path) -> None:
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
        return tree + _format_stages(task.layout.stages, OF_STAGE)
    if column == "stages":
        return _format_stages(task.stages, OF_TIMES)
    value: _Cell = getattr(task.load if column in _OF_LOAD else task, column)
    return value


def _format_stages(stages: Sequence[Stage | StageTimes], words: dict[str, str]) -> str:
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
        raise CarmaError("Parquet files need pyarrow", how_to_add("sim")) from error
