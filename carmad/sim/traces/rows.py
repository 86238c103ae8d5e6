"""Rows of CSV files, and how they become a trace: each is a task, or rejected with the reason.

What the columns of a file mean is for its reader to say.
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
from carmad.sim.task import Rejected, Task, Trace


class Unusable(Exception):
    """Why a row is no task, in words that follow its line number."""


@dataclass(frozen=True, slots=True)
class Known:
    """Columns that a file may have, where it may not have just any."""

    columns: Sequence[str]  # for people; NAME in one stands for any name
    matches: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """The getters raise Unusable."""

    line: int  # its first, counted from 1
    where: Mapping[str, int]  # a column's name and its place
    cells: Sequence[str]

    def text(self, column: str) -> str:
        if len(self.cells) != len(self.where):
            raise Unusable(f"has {len(self.cells)} cells, and should have {len(self.where)}")
        return self.cells[self.where[column]]

    def number(self, column: str) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise Unusable(f"{column} is {text!r}, and should be a number") from None
        if not math.isfinite(value):
            raise Unusable(f"{column} is {text}, and should be a finite number")
        return value

    def whole(self, column: str) -> int:
        value = self.number(column)
        if not value.is_integer():
            raise Unusable(f"{column} is {self.text(column)}, and should be a whole number")
        return int(value)

    def gpus(self, column: str) -> int:
        """Of the whole task."""
        count = self.whole(column)
        if count < 1:
            raise Unusable(f"asks for {count} GPUs" if count else "asks for no GPU")
        return count

    def moment(self, column: str) -> float:
        """A date and time as in ISO 8601, in seconds; taken as UTC."""
        text = self.text(column)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise Unusable(f"{column} is {text!r}, and should be a date and time") from None


def read_rows(
    path: Path,
    required: Sequence[str],
    known: Known | None = None,
    header: Sequence[str] | None = None,
) -> Iterator[Row]:
    """The rows of a CSV file. `header` names the columns of a file that does not.

    Raises CarmaError for a file that cannot be read, and what `places` does.
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
    """Each column's place. Raises CarmaError where one is missing, there twice, or not known."""
    strange = [name for name in header if known and not known.matches(name)]
    for wrong, names in (
        ("lacks the columns", [name for name in required if name not in header]),
        ("has more than one column", [name for name, n in Counter(header).items() if n > 1]),
        ("has columns that nobody knows", strange),
    ):
        if names:
            hint = f"its columns are {', '.join(header)}" if header else "it is empty"
            if known and names is strange:
                hint = f"known are {', '.join(known.columns)}"
            raise CarmaError(f"{path} {wrong}: {', '.join(names)}", hint)
    return {name: place for place, name in enumerate(header)}


def collect(name: str, rows: Iterable[Row], to_task: Callable[[Row], Task]) -> Trace:
    """`to_task` may count `submit_s` from any moment, and raise Unusable."""
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
    """The tasks in the order of their submission, the first one submitted at 0."""
    ranked = sorted(tasks, key=lambda task: task.submit_s)
    begin = ranked[0].submit_s if ranked else 0.0
    if begin != 0:
        ranked = [replace(task, submit_s=task.submit_s - begin) for task in ranked]
    return Trace(name, tuple(ranked), tuple(rejected))


def check(task: Task) -> None:
    """Raises Unusable for what nobody could run."""
    for what, value in (
        ("duration_s", task.duration_s),
        ("expected_s", task.expected_s),
        ("deadline_s", task.deadline_s),
        ("time_limit_s", task.time_limit_s),
        ("declared_mib", task.declared_mib),
        *((f"the estimate {name}", mib) for name, mib in task.estimates),
    ):
        if value is not None and value <= 0:
            raise Unusable(f"{what} is {value:g}, and should be more than 0")
    if task.iteration_s < 0:
        raise Unusable(f"iteration_s is {task.iteration_s:g}, and should be 0 or more")
    if task.layout and task.layout.gpus != task.gpus:
        raise Unusable(f"its layout is one of {task.layout.gpus} GPUs, and it asks for {task.gpus}")
    if task.load.memory_mib < 0:
        raise Unusable(f"memory_mib is {task.load.memory_mib}, and should be 0 or more")
    for what, share in (
        ("sm_active", task.load.sm_active),
        ("sm_occupancy", task.load.sm_occupancy),
        ("dram_active", task.load.dram_active),
    ):
        if not 0 <= share <= 1:
            raise Unusable(f"{what} is {share:g}, and should be between 0 and 1")
