"""One trace through the daemon and through the simulator: do they come to the same?

The daemon is the real one, with real processes on emulated GPUs. Both get the same 30 jobs, the
same GPUs and the same settings: CARMA's defaults, `COMPRESSION` times as fast. Emulated
GPUs slow their jobs by the simulator's law; it is told what surrounds a job's training as it was
measured on jobs that were alone. Nothing is fitted to the outcome. Takes about half an hour.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, product
from random import Random
from statistics import fmean, median
from typing import ClassVar

from benchmarks.harness import Report, markdown_table, verdict
from carma_simulator.experiment import Outcome, Physics, Trace
from carma_simulator.metrics import figures
from carma_simulator.traces import generators
from carma_simulator.traces.generators import log_normal, scale, strata
from carmad.config import Preconditions, Settings
from lab.main import main
from lab.simulator import emulation
from lab.simulator.emulation import (
    COMPRESSION,
    Emulation,
    Overheads,
    calibrate,
    compressed,
    overheads,
)

GPUS = "3xA100-40GB"
JOBS = 30
RUNS = 3  # of the daemon: it differs from itself, too
TARGET = 5.0  # % (Lucid reports less than 4.6 %, Castor no more than 5 %)
DURATION_S, GAP_S, WARMUP_S = 120.0, 20.0, 8.0  # before it: two means, and every job's loading
SEED = 2  # the first with which, simulated, magm lets a job run out of memory


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    settings: Settings
    declared: bool = False  # do users say how much memory their jobs need?


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure: of each of the daemon's runs, and of the simulator. `unit` "": a count."""

    COMPUTED: ClassVar = ("difference", "met")
    variant: str
    what: str
    unit: str
    daemon: tuple[float, ...]
    simulator: float
    bound: float | None = None  # of the difference; None: told for comparison only

    @property
    def difference(self) -> float:
        """From the daemon's median: in %, of counts as it is."""
        apart = self.simulator - median(self.daemon)
        return 100 * apart / median(self.daemon) if self.unit else apart

    @property
    def met(self) -> bool | None:
        return None if self.bound is None else abs(self.difference) <= self.bound

    @property
    def cells(self) -> tuple[str, ...]:
        digits = 1 if self.unit else 0
        middle, low, high = (
            f"{value:.{digits}f}"
            for value in (median(self.daemon), min(self.daemon), max(self.daemon))
        )
        return (
            self.variant,
            self.what,
            f"{middle} {self.unit}".rstrip() + f" ({low}–{high})",
            f"{self.simulator:.{digits}f} {self.unit}".rstrip(),
            f"{self.difference:+.1f} %" if self.unit else f"{self.difference:+.0f}",
            verdict(self.met),
        )


HEADINGS = ("policy", "", "daemon: median (runs)", "simulator", "difference", "≤ 5 %")
MEASURES: Mapping[str, tuple[str, float | None]] = {
    "makespan": ("s", TARGET),
    "mean JCT": ("s", TARGET),
    "mean wait": ("s", None),
    "OOM crashes": ("", None),
    "jobs finished": ("", None),
}
NOTES = """\
## What the simulator does not know

- An emulated job's demand changes by ±5 % from epoch to epoch; the simulator is told the mean, as
  a profile of the job alone would tell it. Most of magm's difference in makespan is one such case:
  job 28 asks for 0.81 of the SMs in its first epochs and for 0.79 on average, the limit of the risk
  test is 0.80, and so job 30 may join it only in the simulator.
- The daemon looks at the GPUs once a period, a thirtieth of the window: what it waits for, a GPU
  that settles or is no longer busy, it sees half a period late on average. In the simulator only
  the first kernel is late by that, as measured.
- What falls into one instant of the simulator, such as three GPUs that settle together, comes in
  an order that milliseconds decide. From there on two runs of the daemon, too, go their own ways.
- A job that is slowed on another of its GPUs still shows its full demand on an emulated GPU, and in
  the simulator less.
- An emulated job takes a quarter of its memory when it starts and the rest in the first
  0.2 s of training, in the simulator all of it with its first kernel."""


def variants() -> tuple[Variant, ...]:
    careless = Preconditions(min_free_mib=0, utilization=False)
    return (
        Variant("exclusive", compressed("exclusive")),
        Variant("magm", compressed("magm")),
        Variant("magm, memory declared", compressed("magm"), declared=True),
        Variant("rr, no preconditions", replace(compressed("rr"), preconditions=careless)),
    )


def trace(seed: int = SEED) -> Trace:
    """Tasks as in CARMA's first trace, each of which trains for a minute or few before the
    compression: log-normal durations, exponential gaps."""
    dice = Random(f"fidelity/{seed}")
    durations = scale(log_normal(strata(dice, JOBS), sigma=0.6), DURATION_S / COMPRESSION)
    gaps = scale([-math.log(1 - share) for share in strata(dice, JOBS - 1)], GAP_S / COMPRESSION)
    each = zip(
        generators.carma_1(seed, JOBS).tasks, accumulate(gaps, initial=0.0), durations, strict=True
    )
    tasks = (replace(task, submit_s=at, duration_s=seconds) for task, at, seconds in each)
    return Trace("fidelity", tuple(tasks))


def simulated(variant: Variant, trace: Trace, measured: Overheads) -> Outcome:
    physics = Physics(first_kernel_s=measured.first_kernel_s, oom_s=measured.oom_s)
    settings, declared = variant.settings, variant.declared
    return emulation.simulated(trace, GPUS, settings, declared, measured.end_s, physics)


def emulated(variant: Variant, trace: Trace) -> Outcome:
    with Emulation(GPUS, variant.settings, WARMUP_S / COMPRESSION) as carmad:
        return carmad.replay(trace, variant.declared)


def compare(variant: str, daemon: Sequence[Outcome], simulator: Outcome) -> Iterator[Comparison]:
    theirs, ours = [_measured(outcome) for outcome in daemon], _measured(simulator)
    for what, (unit, bound) in MEASURES.items():
        runs = tuple(run[what] for run in theirs)
        yield Comparison(variant, what, unit, runs, ours[what], bound)


def _measured(outcome: Outcome) -> dict[str, float]:
    found = figures(outcome)
    assert found.makespan_s is not None and found.jct is not None and found.wait is not None
    values = (found.makespan_s, found.jct.mean, found.wait.mean, found.oom_crashes, found.finished)
    return dict(zip(MEASURES, values, strict=True))


def apart_s(pairs: Sequence[tuple[Outcome, Outcome]]) -> float:
    """How far apart two runs put the JCT of a job, on average over the jobs; median of `pairs`."""
    return median(
        fmean(abs(_jct_s(a, n) - _jct_s(b, n)) for n in range(len(a.jobs))) for a, b in pairs
    )


def _jct_s(outcome: Outcome, number: int) -> float:
    job = outcome.jobs[number]
    return job.ended_at - job.task.submit_s


def measure() -> Report:
    jobs, alone = trace(), []
    daemon: dict[str, list[Outcome]] = {variant.name: [] for variant in variants()}
    for run in range(RUNS):
        alone.append(calibrate(GPUS, variants()[0].settings, WARMUP_S / COMPRESSION))
        for variant in variants():
            daemon[variant.name].append(emulated(variant, jobs))
            print(f"run {run + 1} of {RUNS}: {variant.name}", file=sys.stderr)
    measured = overheads(alone)
    comparisons: list[Comparison] = []
    by_job: dict[str, tuple[float, float]] = {}
    for variant in variants():
        runs, simulator = daemon[variant.name], simulated(variant, jobs, measured)
        comparisons += compare(variant.name, runs, simulator)
        by_job[variant.name] = (
            apart_s(list(product([simulator], runs))),
            apart_s(list(combinations(runs, 2))),
        )
    judged = [row for row in comparisons if row.met is not None]
    return Report(
        "Fidelity: one trace through the daemon and through the simulator",
        [
            markdown_table(HEADINGS, [row.cells for row in comparisons]),
            f"{sum(bool(row.met) for row in judged)} of {len(judged)} targets met.",
            "## Job by job",
            "How far apart two runs put a job's completion time, on average over the jobs:",
            markdown_table(
                ("policy", "simulator and daemon", "daemon and daemon"),
                [(name, f"{a:.2f} s", f"{b:.2f} s") for name, (a, b) in by_job.items()],
            ),
            NOTES,
        ],
        {"seed": SEED, "alone": measured, "rows": comparisons, "jct_apart_s": by_job},
        [
            f"{JOBS} jobs, {GPUS}, seed {SEED}; settings are the defaults, {COMPRESSION:.0f} "
            "times as fast",
            f"measured on jobs that were alone: first kernel {measured.first_kernel_s:.2f} s "
            f"after the launch, gone {measured.end_s:+.2f} s after the training that follows, "
            f"or, out of memory, {measured.oom_s:.2f} s after it",
            "The GPUs are emulated. No real one was at hand: the same comparison with real "
            "training jobs is still to be made.",
        ],
    )


if __name__ == "__main__":
    main("fidelity", measure)
