"""Every figure that is reported: its key for programs, its label for people, and what it means.

One catalogue serves the terminal, the page, CSV and JSON; how a number is written is theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from carmad.sim.report.runs import Run

Better = Literal["lower", "higher", ""]
Unit = Literal["s", "share", "times", "MJ", "1/h", "1/s", "jobs", ""]


@dataclass(frozen=True, slots=True)
class Measure:
    key: str  # stable: a column in CSV, a field in JSON
    group: str
    name: str  # for people: of the quantity
    unit: Unit  # of the value: a share is 0–1, and `times` a ratio
    better: Better  # "": neither end is
    path: str  # from a Run to the value
    meaning: str  # the same for all statistics of a quantity
    statistic: str = ""  # mean, p95, …
    listed: bool = True  # in tables for people
    if_any: bool = False  # there, but not where every run has 0

    @property
    def label(self) -> str:
        return f"{self.name} {self.statistic}".rstrip()

    @property
    def of_all_work(self) -> bool:
        """A run that leaves jobs undone looks the better for it, and is not."""
        return self.group in (TIME, FAIRNESS) or self.key == "energy_mj"

    def of(self, run: Run) -> float | None:
        """None: there is nothing to measure."""
        found: Any = run
        for name in self.path.split("."):
            found = None if found is None else getattr(found, name)
        value: float | None = found
        return value


TIME = "Time"
BOUNDS = "Lower bounds"
FAIRNESS = "Fairness"
SIMULATOR = "Simulator"  # the one group that differs between equal runs

_STATISTICS = {  # of a Spread: and what a label says
    "mean": "mean",
    "median": "median",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "worst": "worst",
}
_MOST = ("mean", "median", "p95", "p999")
_TAIL = ("mean", "p95", "worst")


def _spread(
    field: str,
    group: str,
    name: str,
    unit: Unit,
    meaning: str,
    listed: Collection[str],
    if_any: bool = False,
) -> Iterator[Measure]:
    ending = "_s" if unit == "s" else ""
    for statistic, words in _STATISTICS.items():
        yield Measure(
            key=f"{field}_{statistic}{ending}",
            group=group,
            name=name,
            unit=unit,
            better="lower",
            path=f"figures.{field}.{statistic}",
            meaning=meaning,
            statistic=words,
            listed=statistic in listed,
            if_any=if_any,
        )


def _use(path: str, suffix: str, when: str, over: str) -> Iterator[Measure]:
    for field, name, what in (
        ("memory", "memory", "GPU memory in use, of all there is"),
        ("sm_active", "SMACT", "SM activity"),
        ("sm_occupancy", "SMOCC", "SM occupancy"),
        ("dram_active", "DRAMA", "activity of the memory interface"),
    ):
        yield Measure(
            key=f"{field}{suffix}",
            group="GPUs",
            name=f"{name}{when}",
            unit="share",
            better="higher",
            path=f"figures.{path}.{field}",
            meaning=f"{what}; time-weighted mean over {over}",
        )


def _one(
    name: str,
    group: str,
    label: str,
    unit: Unit,
    better: Better,
    meaning: str,
    if_any: bool = False,
) -> Measure:
    return Measure(name, group, label, unit, better, f"figures.{name}", meaning, if_any=if_any)


def _bound(name: str, label: str, meaning: str) -> Measure:
    meaning += ". It holds where each job stayed on one kind of GPU"
    return Measure(f"bound_{name}", BOUNDS, label, "s", "", f"bounds.{name}", meaning)


_TIMES = (
    _one("makespan_s", TIME, "makespan", "s", "lower", "from the first submission to the last end"),
    *_spread("jct", TIME, "JCT", "s", "job completion time: from submission to the end", _MOST),
    *_spread(
        "wait",
        TIME,
        "wait",
        "s",
        "queuing delay: in the queue, before the first and every later attempt",
        _MOST,
    ),
    *_spread(
        "first_wait", TIME, "first wait", "s", "from submission to the first launch", ("mean",)
    ),
    *_spread(
        "execution",
        TIME,
        "execution",
        "s",
        "on GPUs, launch included: the last attempt, and those it went on from (preempted);"
        " JCT = wait + lost + execution",
        _MOST,
    ),
    *_spread(
        "lost",
        TIME,
        "lost",
        "s",
        "in attempts that crashed and were retried, or were preempted before their first kernel",
        ("mean",),
        True,
    ),
    _one("jobs_per_hour", TIME, "throughput", "1/h", "higher", "finished jobs over the makespan"),
    _one("queue_mean", TIME, "queue mean", "jobs", "lower", "jobs in the queue, over time"),
    _one("queue_max", TIME, "queue longest", "jobs", "lower", "most jobs in the queue at once"),
)

_GPUS = (
    _one("gpus_busy", "GPUs", "busy", "share", "", "of all GPU time: with any job on the GPU"),
    *_use("over_makespan", "", "", "all GPUs, up to the last end"),
    *_use("while_busy", "_busy", " while busy", "the GPUs' busy time"),
    _one("energy_mj", "GPUs", "energy", "MJ", "lower", "of all GPUs, up to the last end"),
)

_JOBS = (
    _one("jobs", "Jobs", "in the trace", "jobs", "", "that were submitted"),
    _one(
        "finished",
        "Jobs",
        "finished",
        "jobs",
        "higher",
        "that came to the end the trace has for them; times and fairness are theirs",
    ),
    _one("errors", "Jobs", "with an error", "jobs", "", "of the finished: the trace says so", True),
    _one("oom_crashes", "Jobs", "OOM crashes", "", "lower", "attempts out of GPU memory"),
    _one("oom_lost", "Jobs", "lost to OOM", "jobs", "lower", "given up after OOM crashes"),
    _one("timed_out", "Jobs", "timed out", "jobs", "lower", "ended by their time limit", True),
    _one(
        "unfinished", "Jobs", "unfinished", "jobs", "lower", "never ended, or ended otherwise", True
    ),
    _one("preemptions", "Jobs", "preemptions", "", "lower", "attempts ended by the policy", True),
    _one("deadlines", "Jobs", "with deadline", "jobs", "", "that have one", True),
    _one("deadlines_met", "Jobs", "deadlines met", "share", "higher", "of the jobs that have one"),
)

_FAIRNESS = (
    *_spread(
        "slowdown",
        FAIRNESS,
        "slowdown",
        "times",
        "execution over what it takes alone on the GPUs it ended on: the price of sharing, and of"
        " preemption, checkpoints and moves. Of a job that moved to another kind of GPU, it is also"
        " the difference between the two",
        _TAIL,
    ),
    *_spread(
        "finish_ratio",
        FAIRNESS,
        "finish ratio",
        "times",
        "ρ = JCT over what the job takes alone on the GPUs it ended on with no wait"
        " (after Themis, NSDI 2020, with the whole request in place of a 1/N share)",
        _TAIL,
    ),
    _one(
        "jain",
        FAIRNESS,
        "Jain's index",
        "",
        "higher",
        "of ρ: (Σρ)²/(n·Σρ²), 1 when all jobs fare alike (Jain, Chiu and Hawe, 1984)",
    ),
)

_BOUNDS = (
    _bound("jct_mean_s", "no-wait JCT mean", "every finished job at once and alone on its GPUs"),
    _bound(
        "makespan_s",
        "no-wait makespan",
        "every finished job at once and alone on its GPUs: the longest job,"
        " and the last arrival plus its duration",
    ),
    _bound(
        "unshared_makespan_s",
        "unshared makespan",
        "work over capacity: no run that shares no GPU ends earlier. One that shares them may,"
        " as a shared GPU can do more than one job's work in a second",
    ),
)

_SIMULATOR = (
    _one("events_per_s", SIMULATOR, "events", "1/s", "", "fed to the core, by the wall clock"),
    _one("decisions_per_s", SIMULATOR, "decisions", "1/s", "", "recorded, by the wall clock"),
)

MEASURES: tuple[Measure, ...] = (*_TIMES, *_GPUS, *_JOBS, *_FAIRNESS, *_BOUNDS, *_SIMULATOR)
