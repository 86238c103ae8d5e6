"""All reported measures: key for programs, label for people, and meaning.

One catalogue for the terminal, the page, CSV and JSON, which format the numbers themselves.
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
    name: str  # of the quantity, for people
    unit: Unit  # of the value: `share` is 0–1, `times` a ratio
    better: Better  # "": neither
    path: str  # from a Run to the value
    meaning: str  # the same for all statistics of a quantity
    statistic: str = ""  # mean, p95, …
    listed: bool = True  # shown in tables for people
    if_any: bool = False  # listed only if some run has a value other than 0

    @property
    def label(self) -> str:
        return f"{self.name} {self.statistic}".rstrip()

    @property
    def of_all_work(self) -> bool:
        """Whether a run looks better if it leaves jobs unfinished."""
        return self.group in (TIME, FAIRNESS) or self.key == "energy_mj"

    def of(self, run: Run) -> float | None:
        """The value in `run`; None if there is nothing to measure."""
        found: Any = run
        for name in self.path.split("."):
            found = None if found is None else getattr(found, name)
        value: float | None = found
        return value


TIME = "Time"
BOUNDS = "Lower bounds"
FAIRNESS = "Fairness"
SIMULATOR = "Simulator"  # the only group that differs between equal runs

_STATISTICS = {  # of a Spread, with their labels
    "mean": "mean",
    "median": "median",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "worst": "worst",
}
_MOST = ("mean", "median", "p95", "p99", "p999")
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
        ("memory", "memory", "GPU memory in use, as a share of all"),
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
    meaning += ". It holds if each job stayed on one kind of GPU"
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
        "on GPUs, launch included: the last attempt, and preempted ones that it continued;"
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
    _one("gpus_busy", "GPUs", "busy", "share", "", "share of GPU time with any job on the GPU"),
    *_use("over_makespan", "", "", "all GPUs, up to the last end"),
    *_use("while_busy", "_busy", " while busy", "the GPUs' busy time"),
    _one("energy_mj", "GPUs", "energy", "MJ", "lower", "of all GPUs, up to the last end"),
)

_JOBS = (
    _one("jobs", "Jobs", "in the trace", "jobs", "", "submitted"),
    _one(
        "finished",
        "Jobs",
        "finished",
        "jobs",
        "higher",
        "reached the end that the trace has for them; times and fairness are about these",
    ),
    _one(
        "errors",
        "Jobs",
        "with an error",
        "jobs",
        "",
        "finished with an error, as in the trace",
        True,
    ),
    _one("oom_crashes", "Jobs", "OOM crashes", "", "lower", "attempts that ran out of GPU memory"),
    _one("oom_lost", "Jobs", "lost to OOM", "jobs", "lower", "given up after OOM crashes"),
    _one("timed_out", "Jobs", "timed out", "jobs", "lower", "ended by their time limit", True),
    _one(
        "unfinished", "Jobs", "unfinished", "jobs", "lower", "never ended, or ended otherwise", True
    ),
    _one("preemptions", "Jobs", "preemptions", "", "lower", "attempts ended by the policy", True),
    _one("shared", "Jobs", "shared a GPU", "jobs", "", "were on a GPU together with another job"),
    _one(
        "profiled",
        "Jobs",
        "profile known",
        "jobs",
        "",
        "started with a profile, from an earlier run of the same job or their own profiling run",
    ),
    _one("deadlines", "Jobs", "with deadline", "jobs", "", "with a deadline", True),
    _one("deadlines_met", "Jobs", "deadlines met", "share", "higher", "of jobs with a deadline"),
)

_FAIRNESS = (
    *_spread(
        "slowdown",
        FAIRNESS,
        "slowdown",
        "times",
        "execution over its duration alone on the GPUs it ended on: the cost of sharing,"
        " preemption, checkpoints and moves. For a job that moved to another kind of GPU, it also"
        " includes the difference between the two",
        _TAIL,
    ),
    *_spread(
        "finish_ratio",
        FAIRNESS,
        "finish ratio",
        "times",
        "ρ = JCT over the job's duration alone on the GPUs it ended on without waiting"
        " (after Themis, NSDI 2020, with the whole request instead of a 1/N share)",
        _TAIL,
    ),
    _one(
        "jain",
        FAIRNESS,
        "Jain's index",
        "",
        "higher",
        "of ρ: (Σρ)²/(n·Σρ²), 1 if all jobs fare alike (Jain, Chiu and Hawe, 1984)",
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
        "work over capacity: a lower bound for runs that share no GPU. Others may beat it,"
        " as a shared GPU can do more than one job's work at a time",
    ),
)

_SIMULATOR = (
    _one(
        "events_per_s",
        SIMULATOR,
        "events",
        "1/s",
        "",
        "handled by the core, per second of wall-clock time",
    ),
    _one(
        "decisions_per_s",
        SIMULATOR,
        "decisions",
        "1/s",
        "",
        "recorded, per second of wall-clock time",
    ),
)

MEASURES: tuple[Measure, ...] = (*_TIMES, *_GPUS, *_JOBS, *_FAIRNESS, *_BOUNDS, *_SIMULATOR)
