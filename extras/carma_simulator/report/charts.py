"""The charts of a report, in order, as images: distributions over jobs, what happened over time,
and which jobs were on which GPU (`gantt`). The only part that needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)
from numpy.typing import NDArray

from carma_simulator.metrics import Times, has_finished, times
from carma_simulator.report import gantt
from carma_simulator.report.gantt import colour, dash, log_time_axis, time_axis, time_label
from carma_simulator.report.measures import Run
from carma_simulator.report.style import RC, WIDTH_IN, image, legend
from carmad.readable import TimeUnit, number

POINTS = 400  # per curve: more jobs than that are drawn as so many evenly spaced quantiles
LOG_FROM = 10.0  # slowdowns beyond it need a logarithmic axis
ROOM = 0.04  # share of an axis left free at the right, so that a curve's last step is visible
BINS = 900  # over the width of the page: about one per pixel
MOST_COLUMNS = 6  # side by side

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chart:
    section: str
    title: str  # within the section
    caption: str
    image: str  # data URI


def charts(runs: Sequence[Run]) -> list[Chart]:
    with rc_context(RC):
        return [
            Chart(section, title, caption, image(figure))
            for section, title, caption, figure in _figures(runs)
        ]


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, Figure]]:
    if any(run.figures.finished for run in runs):
        yield from _of_jobs(runs)
    end_s = max(run.outcome.makespan_s for run in runs)
    if end_s > 0:
        yield from _over_time(runs, end_s)
        yield from _on_gpus(runs, end_s)


def _of_jobs(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, Figure]]:
    yield (
        "How long jobs take",
        "",
        "The share of all jobs with at most this JCT, and this wait. A curve that ends below 100 %"
        " is of a run in which some jobs never finished. Waits shorter than the axis count from its"
        " left end.",
        cdfs(runs),
    )
    yield (
        "How jobs fare compared with running alone",
        "",
        "A box spans the middle half of the finished jobs, with the median inside; whiskers are the"
        " 5th and 95th percentile, a diamond is the worst job. At 1, a job fares as if alone.",
        boxes(runs),
    )


def _over_time(runs: Sequence[Run], end_s: float) -> Iterator[tuple[str, str, str, Figure]]:
    caption = (
        "Each point is the mean over a short interval, the dashed line that over the makespan."
        " SM activity and memory in use are means over all GPUs, power is their total."
    )
    for figure in timelines(runs, end_s):
        yield "Over time", "", caption, figure
        caption = ""


def _on_gpus(runs: Sequence[Run], end_s: float) -> Iterator[tuple[str, str, str, Figure]]:
    section = "Which jobs were on which GPU"
    strips = {
        n: gantt.strips(run.outcome, end_s)
        for n, run in enumerate(runs)
        if not gantt.has_bars(run.outcome)
    }
    most = max((float(found.max()) for found in strips.values()), default=0.0)
    for n, run in enumerate(runs):
        if n in strips:
            figure = gantt.heat(run.outcome, strips[n], n, end_s, most)
            yield section, run.name, _of_heat(run), figure
        else:
            figure = gantt.bars(run.outcome, n, end_s)
            yield section, run.name, _of_bars(run), figure


def _of_bars(run: Run) -> str:
    text = "A row is a GPU; jobs that shared it are drawn one below the other. Numbers are `job` in"
    text += " --csv-jobs."
    if run.figures.oom_crashes:
        text += " × ran out of memory: the job whose number is next to it."
    if run.figures.preemptions:
        text += " A triangle was preempted."
    return text


def _of_heat(run: Run) -> str:
    each = gantt.gpus_per_strip(run.outcome)
    row = "A row is a GPU" if each == 1 else f"A row is the mean of {each} GPUs, named by the first"
    attempts = sum(len(job.attempts) for job in run.outcome.jobs)
    return (
        f"{row}: {attempts:,} attempts on {len(run.outcome.gpus):,} GPUs are too many to draw each."
        f" {run.figures.oom_crashes:,} of them ran out of memory,"
        f" {run.figures.preemptions:,} were preempted."
    )


# -- over jobs


def cdfs(runs: Sequence[Run]) -> Figure:
    """CDFs of JCT and wait, as shares of all jobs."""
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    jct, wait = figure.subplots(1, 2, sharey=True)
    shares = [run.figures.finished / max(1, run.figures.jobs) for run in runs]
    _cdf(jct, [_sort(run, lambda job: job.jct_s) for run in runs], shares)
    _cdf(wait, [_sort(run, lambda job: job.wait_s) for run in runs], shares)
    jct.set_xlabel("job completion time (JCT)")
    wait.set_xlabel("wait in the queue")
    jct.set_ylabel("jobs [%]")
    legend(figure, jct.get_lines(), [run.name for run in runs])
    return figure


def boxes(runs: Sequence[Run]) -> Figure:
    """Slowdown and finish ratio: percentiles 5, 25, 50, 75 and 95, and the worst job."""
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.34 * len(runs)), layout="constrained")
    slowdown, ratio = figure.subplots(1, 2, sharey=True)
    _boxes(slowdown, [_sort(run, lambda job: job.slowdown) for run in runs])
    _boxes(ratio, [_sort(run, lambda job: job.finish_ratio) for run in runs])
    slowdown.set_yticks(range(len(runs)), [run.name for run in runs])
    slowdown.set_xlabel("slowdown: execution / alone [×]")
    ratio.set_xlabel("finish ratio ρ: JCT / alone [×]")
    return figure


def _sort(run: Run, of: Callable[[Times], float | None]) -> _Array:
    found = (times(job) for job in run.outcome.jobs if has_finished(job))
    values = (of(job) for job in found if job is not None)
    return np.sort([value for value in values if value is not None])


def _cdf(axes: Axes, found: Sequence[_Array], shares: Sequence[float]) -> None:
    """Each run's curve ends at the share of its jobs that finished."""
    everything = np.concatenate(found)
    seen = everything[everything >= 1.0]
    begin_s = float(seen.min(initial=3600.0))
    end_s = max(float(seen.max(initial=0.0)), 10 * begin_s)
    end_s *= (end_s / begin_s) ** ROOM
    for n, (values, most) in enumerate(zip(found, shares, strict=True)):
        if len(values) > POINTS:
            share = np.linspace(0.0, 1.0, POINTS)
            values = np.quantile(values, share)
        else:
            share = np.arange(1, len(values) + 1) / max(1, len(values))
        at = np.append(np.maximum(values, begin_s), end_s)
        last = np.append(np.diff(at) > 0, True)  # of those with the same value
        share = most * np.append(share, 1.0)
        (line,) = axes.step(at[last], share[last], where="post")
        width = 1.4 + 0.8 * min(3, len(found) - 1 - n)  # so equal curves stay visible
        line.set(color=colour(n), linestyle=dash(n), linewidth=width)
    log_time_axis(axes, begin_s, end_s)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def _boxes(axes: Axes, found: Sequence[_Array]) -> None:
    told = [(n, values) for n, values in enumerate(found) if len(values)]
    for n, values in told:
        low, q1, middle, q3, high = np.percentile(values, (5, 25, 50, 75, 95))
        stats = {"whislo": low, "q1": q1, "med": middle, "q3": q3, "whishi": high, "fliers": []}
        line = {"color": colour(n)}
        axes.bxp(
            [stats],
            positions=[n],
            widths=0.5,
            orientation="horizontal",
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour(n), "alpha": 0.35},
            medianprops={"color": "black", "linewidth": 1.6},
            whiskerprops=line,
            capprops=line,
        )
        axes.plot(values[-1], n, marker="D", markersize=4, color=colour(n))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    worst = max((float(values[-1]) for _, values in told), default=1.0)
    if worst > LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if worst < 300 else (1.0,)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())


# -- over time


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
