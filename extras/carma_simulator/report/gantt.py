"""Charts of which jobs were on which GPU when: bars if there are few enough, else a heat map; and
the colours and time axes of all charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.markers import CARETRIGHT
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from carma_simulator.experiment import Attempt, Outcome
from carma_simulator.report.style import WIDTH_IN
from carmad.core.jobs.attempt import Cause, GpuId, JobId
from carmad.readable import TimeUnit, time_unit

# -- colours and time axes

# Okabe and Ito's colour-blind safe palette, without the yellow, which is too pale for lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")  # used when the colours repeat
BAD = "#B00020"  # attempts that ran out of memory

_ROUND = {
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    21_600: "6 h",
    86_400: "1 day",
    864_000: "10 days",
    8_640_000: "100 days",
}


def colour(run: int) -> str:
    """The colour, in every chart, of the run with this index."""
    return _COLOURS[run % len(_COLOURS)]


def dash(run: int) -> str:
    return _DASHES[run // len(_COLOURS) % len(_DASHES)]


def log_time_axis(axes: Axes, shortest_s: float, longest_s: float) -> None:
    """A logarithmic x axis in seconds, labelled in readable units."""
    axes.set_xscale("log")
    axes.set_xlim(shortest_s, longest_s)
    axes.xaxis.set_major_locator(FixedLocator(list(_ROUND)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: _ROUND.get(round(at), "")))


def time_axis(axes: Axes, end_s: float) -> TimeUnit:
    """A linear x axis from the first submission to `end_s`. Returns its unit."""
    unit = time_unit(end_s)
    axes.set_xlim(0, end_s / unit.seconds)
    return unit


def time_label(unit: TimeUnit) -> str:
    return f"time since the first submission [{unit.name}]"


MOST_GPUS = 64  # with bars
MOST_BARS = 2000
SHARP_BARS = 300  # more are drawn as pixels, to limit the size of the page
MOST_STRIPS = 128  # rows of a heat map: consecutive GPUs share one
HEAT_BINS = 600  # over the longest run
LABELS = 24  # at most

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt on the GPU of one row, in one of the row's lanes."""

    row: int
    job: JobId
    attempt: Attempt
    lane: int
    lanes: int

    @property
    def top(self) -> float:
        """Position on the axis, where rows are one unit apart with some space in between."""
        return self.row - 0.45 + 0.9 * self.lane / self.lanes

    @property
    def height(self) -> float:
        return 0.9 / self.lanes


def lanes(row: int, attempts: Sequence[tuple[JobId, Attempt]]) -> Iterator[Bar]:
    """The bars of one GPU. Simultaneous ones are in different lanes, as few as necessary; the
    number of lanes is chosen anew whenever the GPU is empty."""
    together: list[tuple[JobId, Attempt, int]] = []
    ends: list[float] = []  # of each lane
    for job, attempt in sorted(attempts, key=lambda found: found[1].launched_at):
        if ends and attempt.launched_at >= max(ends):
            yield from (Bar(row, *found, len(ends)) for found in together)
            together, ends = [], []
        free = (n for n, end in enumerate(ends) if end <= attempt.launched_at)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [attempt.ended_at]
        together.append((job, attempt, lane))
    yield from (Bar(row, *found, len(ends)) for found in together)


def has_bars(outcome: Outcome) -> bool:
    """Otherwise it has a heat map."""
    count = sum(len(attempt.gpus) for job in outcome.jobs for attempt in job.attempts)
    return len(outcome.gpus) <= MOST_GPUS and count <= MOST_BARS


def bars(outcome: Outcome, run: int, end_s: float) -> Figure:
    """A row per GPU, up to `end_s`; `run` is its place in the report.

    × marks where an attempt ran out of memory, with its job's number, a triangle where one was
    preempted.
    """
    found = [bar for row, jobs in enumerate(_by_gpu(outcome)) for bar in lanes(row, jobs)]
    row_in = max(0.14, min(0.55, 3.6 / len(outcome.gpus)))
    figure = Figure(figsize=(WIDTH_IN, 0.6 + row_in * len(outcome.gpus)), layout="constrained")
    axes = figure.subplots()
    unit = time_axis(axes, end_s)
    axes.set_xlabel(time_label(unit))
    _label_gpus(axes, outcome, 1)
    axes.add_collection(_patches(found, run, end_s, unit))
    for cause, marker, ink in ((Cause.GPU_OOM, "x", BAD), (Cause.PREEMPTED, CARETRIGHT, "black")):
        marked = [bar for bar in found if bar.attempt.cause is cause]
        axes.plot(
            [bar.attempt.ended_at / unit.seconds for bar in marked],
            [bar.top + bar.height / 2 for bar in marked],
            linestyle="",
            marker=marker,
            markersize=5,
            color=ink,
        )
    if len(found) <= SHARP_BARS:
        _number(axes, found, run, end_s, row_in, unit)
    return figure


def strips(outcome: Outcome, end_s: float) -> Array:
    """Mean number of jobs on each GPU over time: rows are GPUs, columns are time."""
    edges = np.linspace(0.0, end_s, HEAT_BINS + 1)
    residents = np.array([_residents(jobs, edges) for jobs in _by_gpu(outcome)])
    begins = np.arange(0, len(residents), gpus_per_strip(outcome))
    sizes = np.diff(np.append(begins, len(residents)))
    return np.add.reduceat(residents, begins, axis=0) / sizes[:, None]


def gpus_per_strip(outcome: Outcome) -> int:
    return ceil(len(outcome.gpus) / MOST_STRIPS)


def heat(outcome: Outcome, found: Array, run: int, end_s: float, most: float) -> Figure:
    """The `strips` found, on a scale up to `most` jobs."""
    height_in = 1.2 + 3.6 * min(1.0, len(found) / 48)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots()
    unit = time_axis(axes, end_s)
    axes.set_xlabel(time_label(unit))
    _label_gpus(axes, outcome, gpus_per_strip(outcome))
    shown = axes.imshow(
        found,
        aspect="auto",
        cmap=LinearSegmentedColormap.from_list("run", ["white", colour(run), "black"]),
        vmin=0.0,
        vmax=most,
        extent=(0.0, end_s / unit.seconds, len(found) - 0.5, -0.5),
        interpolation="nearest",
    )
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, label="jobs on a GPU", pad=0.01)
    return figure


def _by_gpu(outcome: Outcome) -> list[list[tuple[JobId, Attempt]]]:
    """The attempts on each GPU, in the order of `outcome.gpus`."""
    rows: dict[GpuId, list[tuple[JobId, Attempt]]] = {gpu.gpu: [] for gpu in outcome.gpus}
    for job in outcome.jobs:
        for attempt in job.attempts:
            for gpu in attempt.gpus:
                rows[gpu].append((job.id, attempt))
    return list(rows.values())


def _patches(found: Sequence[Bar], run: int, end_s: float, unit: TimeUnit) -> PolyCollection:
    shades = [_shade(run, bar.job) for bar in found]
    narrow_s = end_s / 300  # too narrow for a white edge
    patches = PolyCollection(
        [_corners(bar, unit) for bar in found],
        facecolors=shades,
        edgecolors=[
            shade if bar.attempt.ended_at - bar.attempt.launched_at < narrow_s else "white"
            for bar, shade in zip(found, shades, strict=True)
        ],
        linewidths=0.4,
    )
    patches.set_rasterized(len(found) > SHARP_BARS)
    return patches


def _corners(bar: Bar, unit: TimeUnit) -> list[tuple[float, float]]:
    begin, end = bar.attempt.launched_at / unit.seconds, bar.attempt.ended_at / unit.seconds
    bottom = bar.top + bar.height
    return [(begin, bar.top), (end, bar.top), (end, bottom), (begin, bottom)]


def _shade(run: int, job: JobId) -> tuple[float, ...]:
    """A shade that differs from those of jobs submitted just before and after."""
    strength = (0.85, 0.62, 0.4)[job % 3]
    return tuple(1 - strength * (1 - part) for part in to_rgb(colour(run)))


def _number(
    axes: Axes, found: Sequence[Bar], run: int, end_s: float, row_in: float, unit: TimeUnit
) -> None:
    """Label each bar with space for it, or each ×, with the job's number."""
    for bar in found:
        begin, end = bar.attempt.launched_at, bar.attempt.ended_at
        width_pt = (end - begin) / end_s * 72 * 0.9 * WIDTH_IN
        crashed = bar.attempt.cause is Cause.GPU_OOM
        wide = crashed or width_pt > 4 * len(str(bar.job)) + 3
        if not wide or bar.height * row_in * 72 <= 7:
            continue
        ink = "white" if sum(_shade(run, bar.job)) < 1.2 else "black"
        axes.annotate(
            str(bar.job),
            ((end if crashed else (begin + end) / 2) / unit.seconds, bar.top + bar.height / 2),
            xytext=(4 if crashed else 0, 0),
            textcoords="offset points",
            fontsize=6,
            ha="left" if crashed else "center",
            va="center_baseline",
            color=BAD if crashed else ink,
            path_effects=[withStroke(linewidth=2, foreground="white")] if crashed else [],
        )


def _residents(jobs: Sequence[tuple[JobId, Attempt]], edges: Array) -> Array:
    """The mean number of `jobs` present between consecutive edges."""
    passed = np.zeros_like(edges)
    for _, attempt in jobs:
        passed += np.clip(edges, attempt.launched_at, attempt.ended_at) - attempt.launched_at
    return np.diff(passed) / np.diff(edges)


def _label_gpus(axes: Axes, outcome: Outcome, each: int) -> None:
    """Each row has `each` GPUs. If there is no space for all names, only some are shown."""
    met: Counter[str] = Counter()
    names = []
    for gpu in outcome.gpus:
        names.append(f"{gpu.node} GPU {met[gpu.node]}")
        met[gpu.node] += 1
    rows = ceil(len(names) / each)
    step = ceil(rows / LABELS)
    axes.set_yticks(range(0, rows, step), names[:: each * step])
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
