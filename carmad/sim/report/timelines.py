"""Charts over time: the queue, the GPUs in use, their activity, memory and power."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from carmad.readable import TimeUnit
from carmad.sim.report.numbers import number
from carmad.sim.report.runs import Run
from carmad.sim.report.style import WIDTH_IN, colour, time_axis, time_label

BINS = 900  # over the width of the page: about one per pixel
MOST_COLUMNS = 6  # side by side

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Panel:
    field: str  # in the timeline
    label: str
    factor: float = 1.0  # to the label's unit
    whole: bool = False  # counts: only integer ticks


_PANELS = (
    _Panel("queued", "queue [jobs]", whole=True),
    _Panel("busy_gpus", "busy [GPUs]", whole=True),
    _Panel("sm_active", "SM activity [%]", 100.0),
    _Panel("memory", "memory [%]", 100.0),
    _Panel("power_w", "power [kW]", 0.001),
)


def timelines(runs: Sequence[Run], end_s: float) -> Iterator[Figure]:
    """A column for each run up to `end_s`, all with the same scale, split over several figures.

    Each point is the mean over about a pixel; the dashed line is the mean over the whole run.
    """
    edges = np.linspace(0.0, end_s, BINS // min(len(runs), MOST_COLUMNS) + 1)
    columns = [_Column(place, run, edges) for place, run in enumerate(runs)]
    tops = [max(column.tops[n] for column in columns) for n in range(len(_PANELS))]
    for first in range(0, len(columns), MOST_COLUMNS):
        yield _figure(columns[first : first + MOST_COLUMNS], tops, end_s)


class _Column:
    """One run's data: for each panel, the values between the edges and their mean."""

    def __init__(self, place: int, run: Run, edges: _Array) -> None:
        self.place, self.name, self.edges = place, run.name, edges
        self.end_s = run.outcome.makespan_s
        line = run.outcome.timeline
        fields = [(getattr(line, panel.field), panel.factor) for panel in _PANELS]
        whole = np.array([0.0, self.end_s])
        self.values = [f * means(line.at, values, edges, self.end_s) for values, f in fields]
        self.means = [f * means(line.at, values, whole, self.end_s)[0] for values, f in fields]
        self.tops = [float(np.nanmax(values, initial=0.0)) for values in self.values]

    def draw(self, panels: Sequence[Axes], unit: TimeUnit) -> None:
        for axes, values, mean in zip(panels, self.values, self.means, strict=True):
            axes.stairs(
                values, self.edges / unit.seconds, fill=True, color=colour(self.place), alpha=0.6
            )
            axes.plot([0, self.end_s / unit.seconds], [mean, mean], "k--", linewidth=0.8)
            axes.set_title(f"mean {number(mean)}", loc="right", fontsize=8, pad=2)


def _figure(columns: Sequence[_Column], tops: Sequence[float], end_s: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 1.25 * len(_PANELS) + 0.5), layout="constrained")
    grid = figure.subplots(len(_PANELS), len(columns), sharex=True, sharey="row", squeeze=False)
    unit = time_axis(grid[0, 0], end_s)
    figure.supxlabel(time_label(unit))
    for panels, column in zip(grid.T, columns, strict=True):
        name = fill(column.name, width=100 // len(columns))
        panels[0].annotate(name, (0, 1.25), xycoords="axes fraction", fontweight="bold")
        column.draw(panels, unit)
    for axes, panel, top in zip(grid[:, 0], _PANELS, tops, strict=True):
        axes.set_ylabel(panel.label)
        axes.set_ylim(0, 1.05 * top or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=panel.whole))
    figure.align_ylabels(grid[:, 0])
    return figure


def means(at: Sequence[float], values: Sequence[float], edges: _Array, end_s: float) -> _Array:
    """The time-weighted mean of a step function between consecutive `edges`.

    Each of `values` holds from its `at` to the next one, the last to `end_s`. An interval with
    `end_s` in it has the mean up to then; one beyond it is NaN.
    """
    corners = np.append(np.asarray(at, dtype=float), max(end_s, *at[-1:]))
    passed = np.append(0.0, np.cumsum(np.asarray(values, dtype=float) * np.diff(corners)))
    cut = np.minimum(edges, end_s)
    within = np.diff(cut)
    between: _Array = np.diff(np.interp(cut, corners, passed))
    return between / np.where(within > 0, within, np.nan)
