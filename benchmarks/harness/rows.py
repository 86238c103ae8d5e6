"""Rows of measurements with their targets, and the tables that show them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.harness import markdown
from carmad.readable import number


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `bound` is what it must not exceed, or with `least` not fall below."""

    COMPUTED: ClassVar = ("met",)
    group: str
    what: str
    value: float
    unit: str
    bound: float | None = None  # None: told for comparison only
    least: bool = False
    spread: tuple[float, float] | None = None  # lowest and highest of the runs
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound

    def cells(self) -> tuple[str, ...]:
        target = ""
        if self.bound is not None:
            target = f"{'≥' if self.least else '≤'} {number(self.bound)} {self.unit}"
        spread = f"{number(self.spread[0])}–{number(self.spread[1])}" if self.spread else ""
        measured = f"{number(self.value)} {self.unit}"
        cells = (self.group, self.what, target.rstrip(), measured, spread)
        return *cells, verdict(self.met), self.note


Column = tuple[str, str | Callable[[Any], str]]


def columns(rows: Iterable[object], *columns: Column, text: Collection[int] = (0,)) -> str:
    """A table with a line for each row; columns are set right, but for `text`, counted from 0.

    A column is its heading and what a row has in it: a format ("{0.jobs:,}") or a function.
    """
    cells = [
        [form.format(row) if isinstance(form, str) else form(row) for _, form in columns]
        for row in rows
    ]
    return markdown.table([name for name, _ in columns], cells, {*range(len(columns))} - {*text})


def verdict(met: bool | None) -> str:
    return {None: "", True: "met", False: "MISSED"}[met]


HEADINGS = ("", "what", "target", "measured", "runs", "", "note")


def of_runs(group: str, what: str, runs: Sequence[float], unit: str, **more: object) -> Row:
    """The median of several runs, with their spread."""
    spread = (min(runs), max(runs)) if len(runs) > 1 else None
    return Row(group, what, statistics.median(runs), unit, spread=spread, **more)  # type: ignore[arg-type]


def percentile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def table(rows: Sequence[Row]) -> str:
    return markdown.table(HEADINGS, [row.cells() for row in rows])


def summary(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.met is not None]
    missed = [f"{row.group}: {row.what}" for row in judged if not row.met]
    text = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return text + (f"; MISSED: {'; '.join(missed)}" if missed else "")
