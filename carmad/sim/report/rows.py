"""The figures of several runs as rows of words: what the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from carmad.sim.report.measures import MEASURES, Measure
from carmad.sim.report.numbers import NOTHING, change, number, time_unit
from carmad.sim.report.runs import Run


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    change: str = ""  # against the first run
    best: bool = False  # of its row, where not all are the same


@dataclass(frozen=True, slots=True)
class Row:
    """One measure in one unit, a cell for each run."""

    measure: Measure
    unit: str
    cells: tuple[Cell, ...]


def rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """The measures that are listed and say something of these runs."""
    found = []
    for measure in MEASURES:
        values = [measure.of(run) for run in runs]
        told = [value for value in values if value is not None]
        if measure.listed and told and (any(told) or not measure.if_any):
            found.append(_row(measure, values, told))
    return tuple(found)


def _row(measure: Measure, values: Sequence[float | None], told: Sequence[float]) -> Row:
    unit, scale = _unit(measure, told)
    texts = [NOTHING if value is None else number(value * scale) for value in values]
    best = None
    if measure.better and len(set(texts)) > 1:
        pick = min if measure.better == "lower" else max
        best = texts[values.index(pick(told))]
    changes = [_change(value, values[0]) if measure.better else "" for value in values]
    cells = (
        Cell(text, changed if text != texts[0] else "", text == best)
        for text, changed in zip(texts, changes, strict=True)
    )
    return Row(measure, unit, tuple(cells))


def _unit(measure: Measure, told: Sequence[float]) -> tuple[str, float]:
    """What the numbers are shown in, and the factor from the measure's own unit."""
    match measure.unit:
        case "s":
            unit = time_unit(median([value for value in told if value] or [0.0]))
            return unit.name, 1 / unit.seconds
        case "share":
            return "%", 100.0
        case "times":
            return "×", 1
        case plain:
            return plain, 1  # a count stays one


def _change(value: float | None, first: float | None) -> str:
    return "" if value is None or first is None else change(value, first)
