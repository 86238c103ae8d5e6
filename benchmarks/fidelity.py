"""`python -m benchmarks.fidelity`: one trace through the daemon and through the simulator.

The daemon is the real one, with real processes on emulated GPUs. Both get the same 30 jobs, the
same settings, CARMA's defaults `COMPRESSION` times as fast, and the same GPUs, whose law of
interference the simulator is told. What surrounds a job's training (`Physics`) is measured before,
on jobs that are alone, and nothing is fitted to the outcome.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import median

from benchmarks.fidelity_daemon import REPEATS, Emulation, Overheads, calibrate
from benchmarks.rows import RESULTS, circumstances
from carmad.config import Limits, Monitor, Preconditions, Settings
from carmad.core.types import Mode
from carmad.gpu.card import DRAM_CONTENTION
from carmad.sim import interference
from carmad.sim.experiment import Experiment, Physics
from carmad.sim.hardware import parse
from carmad.sim.interference.base import Sharing
from carmad.sim.metrics import figures
from carmad.sim.outcome import Outcome
from carmad.sim.run import simulate
from carmad.sim.task import Load, Trace
from carmad.sim.traces import generators
from carmad.sim.traces.draws import log_normal, scaled, strata

GPUS = "3xA100-40GB"
JOBS = 30
COMPRESSION = 10.0
DURATION_S, GAP_S = 120.0, 20.0  # means, before the compression
WARMUP_S = 8.0  # before the first kernel, before the compression
SEED = 2  # the first for which magm, simulated, has a job run out of memory
RUNS = 3
TARGET = 5.0  # % (Lucid reports < 4.6 %, Castor ≤ 5 %)


class EmulatedCard(Sharing):
    """The law that `carmad.gpu.card` slows its tenants by."""

    name = "emulated"

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        sm = max(1.0, math.fsum(load.sm_active for load in loads))
        dram = math.fsum(load.dram_active for load in loads)
        return tuple(
            1 / (sm * (1 + DRAM_CONTENTION * (dram - load.dram_active))) for load in loads
        )


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    settings: Settings
    declared: bool = False  # do users say how much memory their jobs need?


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one variant."""

    variant: str
    what: str
    unit: str
    daemon: tuple[float, ...]  # of each run
    simulator: float
    bound: float | None = None  # of the difference, in %

    @property
    def difference(self) -> float:
        """Of the simulator from the daemon's median, in %."""
        truth = median(self.daemon)
        if truth == 0:
            return 0.0 if self.simulator == 0 else math.inf
        return 100 * (self.simulator - truth) / truth

    @property
    def met(self) -> bool | None:
        return None if self.bound is None else abs(self.difference) <= self.bound

    def cells(self) -> tuple[str, ...]:
        runs = f"{min(self.daemon):.4g}–{max(self.daemon):.4g}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return (
            self.variant,
            self.what,
            f"{median(self.daemon):.4g} {self.unit} ({runs})".replace(" (", " (", 1),
            f"{self.simulator:.4g} {self.unit}",
            f"{self.difference:+.1f} %",
            verdict,
        )


HEADINGS = ("policy", "", "daemon: median (runs)", "simulator", "difference", "")


def variants() -> tuple[Variant, ...]:
    base = Settings(
        monitor=Monitor(period_s=1 / COMPRESSION, window_s=30 / COMPRESSION),
        limits=Limits(kill_grace_s=30 / COMPRESSION),
    )
    careless = Preconditions(min_free_mib=0, utilization=False)
    return (
        Variant("exclusive", replace(base, policy="exclusive")),
        Variant("magm", replace(base, policy="magm")),
        Variant("magm, memory declared", replace(base, policy="magm"), declared=True),
        Variant("rr, no preconditions", replace(base, policy="rr", preconditions=careless)),
    )


def trace(seed: int = SEED) -> Trace:
    """What the tasks of CARMA's first trace ask of GPUs, each stopped after a minute or few."""
    dice = Random(f"fidelity/{seed}")
    tasks = generators.carma_1(seed, JOBS).tasks
    durations = scaled(log_normal(strata(dice, JOBS), sigma=0.6), DURATION_S / COMPRESSION)
    gaps = scaled([-math.log(1 - share) for share in strata(dice, JOBS - 1)], GAP_S / COMPRESSION)
    moments = [math.fsum(gaps[:n]) for n in range(JOBS)]
    return Trace(
        "fidelity",
        tuple(
            replace(task, submit_s=at, duration_s=seconds)
            for task, at, seconds in zip(tasks, moments, durations, strict=True)
        ),
    )


def simulated(variant: Variant, trace: Trace, measured: Overheads) -> Outcome:
    """A task's duration is that from its first kernel to its end, so the end counts with it."""
    interference._MODELS[EmulatedCard.name] = EmulatedCard
    tasks = (replace(task, duration_s=task.duration_s + measured.end_s) for task in trace.tasks)
    return simulate(
        Experiment(
            replace(trace, tasks=tuple(tasks)),
            parse(GPUS),
            variant.settings,
            estimator="oracle" if variant.declared else "none",
            interference=EmulatedCard.name,
            physics=Physics(first_kernel_s=measured.first_kernel_s, oom_s=measured.oom_s),
        )
    )


def emulated(variant: Variant, trace: Trace) -> Outcome:
    with Emulation(GPUS, variant.settings, WARMUP_S / COMPRESSION) as emulation:
        return emulation.replay(trace, variant.declared)


def compare(variant: str, daemon: Sequence[Outcome], simulator: Outcome) -> Iterator[Comparison]:
    theirs, ours = [_figures(outcome) for outcome in daemon], _figures(simulator)
    for what, (unit, bound) in MEASURES.items():
        runs = tuple(run[what] for run in theirs)
        yield Comparison(variant, what, unit, runs, ours[what], bound)


MEASURES: dict[str, tuple[str, float | None]] = {
    "makespan": ("s", TARGET),
    "mean JCT": ("s", TARGET),
    "mean wait": ("s", None),
    "OOM crashes": ("", None),
    "finished": ("jobs", None),
}


def _figures(outcome: Outcome) -> dict[str, float]:
    found = figures(outcome)
    assert found.jct is not None and found.wait is not None
    return {
        "makespan": found.makespan_s,
        "mean JCT": found.jct.mean,
        "mean wait": found.wait.mean,
        "OOM crashes": found.oom_crashes,
        "finished": found.finished,
    }
