"""Turns rows of CSV files into a trace: each is a task, or rejected with the reason.

The reader of each format defines what the columns mean.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from carmad.errors import CarmaError
from carmad.options import MAX_TIME_S
from carmad.sim.task import Rejected, Task, Trace

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
) -> Iterator[Row]:
    """The rows of a CSV file. `header` names the columns of a file without a header.

    Raises CarmaError for a file that cannot be read, and for what `places` rejects.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
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
    return ordered(name, tasks, rejected)


def ordered(name: str, tasks: Iterable[Task], rejected: Iterable[Rejected] = ()) -> Trace:
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
