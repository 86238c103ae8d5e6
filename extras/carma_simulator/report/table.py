"""The measures of several runs as a terminal table, with one column or one line per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from carma_simulator.report.measures import Cell, Row, Run, measure_notes, measure_rows

_GAP = 2
_BEST = "*"  # visible without colour, too
_LONGEST_NAME = 24
_MOST_COLUMNS = 8  # with more runs, each has a line
_OVERVIEW = (  # the most important first: what does not fit goes to another table
    *("makespan_s", "jct_mean_s", "jct_p99_s", "wait_mean_s", "wait_p99_s", "energy_mj"),
    *("oom_crashes", "finished", "preemptions", "deadlines_met", "slowdown_mean", "gpus_busy"),
)


def comparison(runs: Sequence[Run]) -> Comparison | Overview:
    return Overview(runs) if len(runs) > _MOST_COLUMNS else Comparison(runs)


@dataclass(frozen=True, slots=True)
class Overview:
    """Many runs, a line each, rendered by rich, with the most important measures.

    If these do not all fit, another table follows with the rest.
    """

    runs: Sequence[Run]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        by_key = {row.measure.key: row for row in measure_rows(self.runs)}
        left = [by_key[key] for key in _OVERVIEW if key in by_key]
        names = max(cell_len(run.name) for run in self.runs)
        while left:
            room = options.max_width - names
            ends = accumulate(_width(row) + 1 for row in left)
            fitting = max(1, sum(end <= room for end in ends))
            yield self._table(left[:fitting])
            left = left[fitting:]
        yield from _footer(self.runs, "all figures: --csv, --html")

    def _table(self, found: Sequence[Row]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        lines = max(len(_title(row)) for row in found)
        for row in found:
            title = Text("\n".join(_title(row)))
            title.append("\n" * (1 + lines - len(_title(row))) + row.unit, style="not bold dim")
            table.add_column(title, justify="right", no_wrap=True)
        for n, run in enumerate(self.runs):
            table.add_row(run.name, *(_mark(row.cells[n]) for row in found))
        return table


@dataclass(frozen=True, slots=True)
class Comparison:
    """One or more runs side by side, rendered by rich.

    If they do not all fit, another table follows. Each starts with the first run, with which the
    others are compared.
    """

    runs: Sequence[Run]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = measure_rows(self.runs)
        columns = [
            _Column(run.name, [row.cells[n] for row in found]) for n, run in enumerate(self.runs)
        ]
        labels = max(cell_len(row.measure.label) for row in found)
        units = max(cell_len(row.unit) for row in found)
        room = options.max_width - labels - units - 2 * _GAP
        for block in _blocks(columns, room):
            yield _table(found, block)
            yield Text()
        yield from _footer(self.runs, f"changes against {columns[0].name}")


def _footer(runs: Sequence[Run], more: str) -> Iterator[Text]:
    if len(runs) > 1:
        yield Text(f"{_BEST} best of all runs; {more}", style="dim")
    for note in measure_notes(runs):
        yield Text(note, style="dim")


def _title(row: Row) -> list[str]:
    """A word per line."""
    return row.measure.label.split()


def _mark(cell: Cell) -> Text:
    return Text(f"{cell.text}{_BEST}", style="bold green") if cell.best else Text(f"{cell.text} ")


def _width(row: Row) -> int:
    """Of its column in an overview."""
    cells = (_mark(cell).plain for cell in row.cells)
    return max(map(cell_len, (*_title(row), row.unit, *cells)))


class _Column:
    """One run's cells, with values, marks and changes aligned."""

    def __init__(self, name: str, cells: Sequence[Cell]) -> None:
        self.name = name
        self._value = max(cell_len(cell.text) for cell in cells)
        change = max(cell_len(cell.change) for cell in cells)
        self._change = change + 1 if change else 0
        longest = min(cell_len(name), _LONGEST_NAME)
        self.width = max(longest, self._value + 1 + self._change)
        self.cells = [self._set(cell) for cell in cells]

    def header(self) -> Text:
        name = self.name
        if cell_len(name) > self.width:
            name = set_cell_size(name, self.width - 1) + "…"
        return Text(name, style="bold")

    def _set(self, cell: Cell) -> Text:
        marked = f"{cell.text:>{self._value}}{_BEST if cell.best else ' '}"
        text = Text(marked, style="bold green" if cell.best else "")
        return text.append(f"{cell.change:>{self._change}}", style="not bold dim")


def _blocks(columns: Sequence[_Column], room: int) -> Iterator[list[_Column]]:
    """Blocks of columns that fit side by side, each starting with the first column."""
    first, *others = columns
    block, left = [first], room - first.width
    for column in others:
        if column.width + _GAP > left and len(block) > 1:
            yield block
            block, left = [first], room - first.width
        block.append(column)
        left -= column.width + _GAP
    yield block


def _table(found: Sequence[Row], columns: Sequence[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column.header(), justify="right", no_wrap=True, min_width=column.width)
    at = 0
    for group, members in groupby(found, lambda row: row.measure.group):
        table.add_row(Text(group, style="bold"))
        for row in members:
            cells = (column.cells[at] for column in columns)
            table.add_row(row.measure.label, Text(row.unit, style="dim"), *cells)
            at += 1
    return table
