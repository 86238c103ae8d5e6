"""Charts of distributions over jobs: CDFs of times, and box plots of slowdowns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from carmad.sim.metrics import Times, finished, times
from carmad.sim.report.runs import Run
from carmad.sim.report.style import WIDTH_IN, colour, dash, legend, log_time_axis

POINTS = 400  # per curve: more jobs than that are drawn as so many evenly spaced quantiles
LOG_FROM = 10.0  # slowdowns beyond it need a logarithmic axis

ROOM = 0.04  # share of an axis left free at the right, so that a curve's last step is visible

_Values = NDArray[np.float64]


def cdfs(runs: Sequence[Run]) -> Figure:
    """CDFs of JCT and wait, as shares of all jobs."""
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    jct, wait = figure.subplots(1, 2, sharey=True)
    shares = [run.figures.finished / max(1, run.figures.jobs) for run in runs]
    _cdf(jct, [_of_jobs(run, lambda job: job.jct_s) for run in runs], shares)
    _cdf(wait, [_of_jobs(run, lambda job: job.wait_s) for run in runs], shares)
    jct.set_xlabel("job completion time (JCT)")
    wait.set_xlabel("wait in the queue")
    jct.set_ylabel("jobs [%]")
    legend(figure, jct.get_lines(), [run.name for run in runs])
    return figure


def boxes(runs: Sequence[Run]) -> Figure:
    """Slowdown and finish ratio: percentiles 5, 25, 50, 75 and 95, and the worst job."""
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.34 * len(runs)), layout="constrained")
    slowdown, ratio = figure.subplots(1, 2, sharey=True)
    _boxes(slowdown, [_of_jobs(run, lambda job: job.slowdown) for run in runs])
    _boxes(ratio, [_of_jobs(run, lambda job: job.finish_ratio) for run in runs])
    slowdown.set_yticks(range(len(runs)), [run.name for run in runs])
    slowdown.set_xlabel("slowdown: execution / alone [×]")
    ratio.set_xlabel("finish ratio ρ: JCT / alone [×]")
    return figure


def _of_jobs(run: Run, of: Callable[[Times], float | None]) -> _Values:
    found = (times(job) for job in run.outcome.jobs if finished(job))
    values = (of(job) for job in found if job is not None)
    return np.sort([value for value in values if value is not None])


def _cdf(axes: Axes, found: Sequence[_Values], shares: Sequence[float]) -> None:
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


def _boxes(axes: Axes, found: Sequence[_Values]) -> None:
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
