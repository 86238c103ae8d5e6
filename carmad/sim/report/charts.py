"""The charts of a report, in order, as images. The only part that needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from carmad.sim.report import gantt
from carmad.sim.report.distributions import boxes, cdfs
from carmad.sim.report.runs import Run
from carmad.sim.report.style import RC, image
from carmad.sim.report.timelines import timelines


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
