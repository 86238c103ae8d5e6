"""The measures of several runs as rows of text, for both the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from carmad.readable import change, number, time_unit
from carmad.sim.report.measures import BOUNDS, MEASURES, TIME, Better, Measure
from carmad.sim.report.runs import Run


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    change: str = ""  # against the first run
    best: bool = False  # of those compared, if not all are equal


@dataclass(frozen=True, slots=True)
class Row:
    """One measure in one unit, a cell for each run."""

    measure: Measure
    unit: str
    cells: tuple[Cell, ...]


def rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """The listed measures that have values in these runs; times always, with at least a dash."""
    found = []
    for measure in MEASURES:
        values = [measure.of(run) for run in runs]
        told = [value for value in values if value is not None]
        said = told or measure.group in (TIME, BOUNDS)
        if measure.listed and (any(told) if measure.if_any else said):
            unit, scale = _unit(measure, told)
            cells = _cells(values, scale, measure.better, _compared(measure, runs))
            found.append(Row(measure, unit, cells))
    return tuple(found)


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the figures of some runs do not show by themselves, and which runs."""
    unshared = [run for run in runs if not run.figures.shared]
    told = {
        "time, energy and fairness are not compared if fewer jobs finished": [
            run for run in runs if not _did_most(run, runs)
        ],
        "there is no makespan, nor anything derived from it, if some jobs never end": [
            run for run in runs if run.figures.makespan_s is None
        ],
        "no GPU was shared": unshared,
        "no job started with a known profile, and a policy that needs one does not share": [
            run for run in unshared if run.figures.profiled == 0
        ],
        "no job could be preempted (limits.preemption is off)": [
            run for run in runs if "preemption_off" in run.outcome.reasons
        ],
    }
    return tuple(
        f"{why}: {', '.join(run.name for run in these)}" for why, these in told.items() if these
    )


def _did_most(run: Run, runs: Sequence[Run]) -> bool:
    return run.figures.finished == max(other.figures.finished for other in runs)


def _compared(measure: Measure, runs: Sequence[Run]) -> list[bool]:
    if not measure.better:
        return [False] * len(runs)
    return [not measure.of_all_work or _did_most(run, runs) for run in runs]


def _cells(
    values: Sequence[float | None], scale: float, better: Better, compared: Sequence[bool]
) -> tuple[Cell, ...]:
    texts = ["-" if value is None else number(value * scale) for value in values]
    told = {
        value: text
        for value, text, among in zip(values, texts, compared, strict=True)
        if among and value is not None
    }
    best = None
    if len(set(told.values())) > 1:
        best = told[min(told) if better == "lower" else max(told)]
    return tuple(
        Cell(
            text,
            _change(value, values[0]) if among and compared[0] and text != texts[0] else "",
            among and text == best,
        )
        for value, text, among in zip(values, texts, compared, strict=True)
    )


def _unit(measure: Measure, told: Sequence[float]) -> tuple[str, float]:
    """The unit to show, and the factor from the measure's own unit."""
    match measure.unit:
        case "s":
            unit = time_unit(median([value for value in told if value] or [0.0]))
            return unit.name, 1 / unit.seconds
        case "share":
            return "%", 100.0
        case "times":
            return "×", 1
        case plain:
            return plain, 1  # a count remains a count


def _change(value: float | None, first: float | None) -> str:
    return "" if value is None or first is None else change(value, first)
