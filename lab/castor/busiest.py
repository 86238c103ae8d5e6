"""What the busiest hours of Philly's trace consist of, beside Sia's samples of it.

The Castor paper samples 240 jobs "from the busiest period" of the Philly trace, and says of its
testbed's jobs that 34 % want 16 or 32 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.harness import Report, columns
from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.public import philly
from lab.castor.runs import FAMILIES, FEW, LARGE
from lab.castor.workload import sampled
from lab.data import DATA
from lab.main import main

HOURS = 8.0  # as long as Sia's samples
WIDE = 16  # GPUs

NOTE = """\
The busiest eight hours of `philly.csv`: those in which most jobs, most GPUs or most GPU time are
asked for. Sia's samples are those of `lab.castor`, whose durations are an A6000's."""


@dataclass(frozen=True, slots=True)
class Period:
    what: str
    jobs: int
    gpus: float  # mean
    large: float  # share of the jobs with more than `LARGE` GPUs
    wide: float  # with at least `WIDE`
    median_h: float  # of the durations
    mean_h: float


def busiest(tasks: Sequence[Task], weights: Sequence[float], hours: float = HOURS) -> list[Task]:
    """The jobs of the hours that begin with one of `tasks`, which are in order of submission, and
    have the largest sum of weights."""
    best, begins, end, total = 0.0, (0, 0), 0, 0.0
    for begin, task in enumerate(tasks):
        while end < len(tasks) and tasks[end].submit_s < task.submit_s + 3600 * hours:
            total += weights[end]
            end += 1
        if total > best:
            best, begins = total, (begin, end)
        total -= weights[begin]
    return list(tasks[slice(*begins)])


def measure() -> Report:
    return report(philly(DATA / "philly" / "philly.csv"))


def report(whole: Trace) -> Report:
    found = [_period(what, tasks) for what, tasks in _periods(whole)]
    table = columns(
        found,
        ("", "{0.what}"),
        ("jobs", "{0.jobs:,}"),
        ("GPUs, mean", "{0.gpus:.2f}"),
        (f"more than {LARGE} GPUs", "{0.large:.1%}"),
        (f"{WIDE} and more", "{0.wide:.1%}"),
        ("hours, median", "{0.median_h:.2f}"),
        ("mean", "{0.mean_h:.2f}"),
    )
    return Report("Philly's busiest hours", [NOTE, table], {"periods": found})


def _periods(whole: Trace) -> Iterator[tuple[str, Sequence[Task]]]:
    tasks = sorted(whole.tasks, key=lambda task: task.submit_s)
    yield "all of Philly", tasks
    yield "most jobs in eight hours", busiest(tasks, [1.0] * len(tasks))
    yield "most GPUs in eight hours", busiest(tasks, [float(task.gpus) for task in tasks])
    gpu_s = [task.gpus * task.duration_s for task in tasks]
    yield "most GPU time in eight hours", busiest(tasks, gpu_s)
    for family in FAMILIES:
        yield f"Sia's {family}, five samples", [t for n in FEW for t in sampled(family, n).tasks]


def _period(what: str, tasks: Sequence[Task]) -> Period:
    hours = [task.duration_s / 3600 for task in tasks]
    return Period(
        what,
        len(tasks),
        fmean(task.gpus for task in tasks),
        fmean(task.gpus > LARGE for task in tasks),
        fmean(task.gpus >= WIDE for task in tasks),
        median(hours),
        fmean(hours),
    )


if __name__ == "__main__":
    main("castor_busiest", measure, DATA)
