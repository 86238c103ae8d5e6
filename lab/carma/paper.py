"""The CARMA paper's server and runs, what a simulation of them assumes, and other assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Literal, get_args
from unittest import mock

import numpy as np

from carma_simulator import catalogue, metrics
from carma_simulator.experiment import Experiment, Load, Outcome, Physics, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.interference import MODELS
from carma_simulator.run import simulate
from carmad.config import Collocation, Preconditions, Settings
from lab.carma.catalogue import MEMORY_OVER_GPU
from lab.carma.figures import power_by_smact
from lab.data import DATA

TRACE = DATA / "carma" / "trace1.csv"
SECOND = DATA / "carma" / "trace2.csv"
GPUS = "3xDGX-Station-A100-40GB"
DEFAULT = "conserving"  # interference

# 4.2: known needs and a margin of 2 GB; 4.3: 5 GB free, RR without conditions; 4.4: estimates.
KNOWN = Preconditions(min_free_mib=0, margin_mib=2048)
FREE_5GB = Preconditions(min_free_mib=5120)
NONE = Preconditions(min_free_mib=0, utilization=False)
UNLIMITED = Preconditions(min_free_mib=5120, utilization=False)


@dataclass(frozen=True, slots=True)
class Run:
    section: str
    policy: str
    estimator: str
    preconditions: Preconditions

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.section}"


EXCLUSIVE = Run("exclusive", "exclusive", "none", NONE)
ORACLE = Run("oracle", "magm", "oracle", KNOWN)
RR = Run("recovery only", "rr", "none", NONE)
MAGM = Run("recovery only", "magm", "none", FREE_5GB)  # what the paper's 4.6 looks at
LUG = replace(MAGM, policy="lug")

Changed = Callable[[Trace], Trace]
Scope = Literal["node", "gpu"]


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the paper does not tell, and our answer to it."""

    interference: str = DEFAULT
    scope: Scope = "node"  # as the artifact's MPS_enabling.sh: one MPS server for all GPUs
    mps: bool = True  # False: streams
    first_kernel_s: float = 10.0
    gpus: str = GPUS
    trace: Changed = lambda trace: trace
    by_points: bool = False  # power as the figures' readings have it, not by the law fitted to them


def simulated(trace: Trace, run: Run, assumed: Assumed = Assumed()) -> Outcome:
    settings = Settings(
        policy=run.policy,
        preconditions=run.preconditions,
        collocation=Collocation(mps=assumed.mps, mps_scope=assumed.scope),
    )
    physics = Physics(first_kernel_s=assumed.first_kernel_s)
    cluster, trace = parse(assumed.gpus), assumed.trace(trace)
    experiment = Experiment(
        trace, cluster, settings, run.estimator, assumed.interference, physics=physics
    )
    if not assumed.by_points:
        return simulate(experiment)
    smact, watts = zip(*power_by_smact(), strict=True)

    def power_w(idle_w: float, busy_w: float, sm_active: float, dram_active: float) -> float:
        return float(np.interp(sm_active, smact, watts))

    with mock.patch("carmad.gpu.card.power_w", power_w):
        return simulate(experiment)


@dataclass(frozen=True, slots=True)
class Result:
    """Changes are in per cent of the exclusive run's figure."""

    makespan_h: float
    makespan_change: float
    smact: float  # mean over GPUs and makespan
    smact_change: float
    busy_kept: float  # SM-busy seconds, %: sharing saves some where kernels share an SM
    energy_mj: float
    energy_change: float
    power_change: float  # of the mean power
    oom_crashes: int
    alone_h: float  # the exclusive run's makespan
    smocc_change: float
    memory_change: float
    p95_wait_min: float
    p95_execution_min: float
    p95_jct_min: float


def result(outcome: Outcome, alone: Outcome) -> Result:
    figures, before = metrics.figures(outcome), metrics.figures(alone)
    use, use_before = figures.over_makespan, before.over_makespan
    assert use and use_before
    makespan, smact, energy = (
        outcome.makespan_s / alone.makespan_s,
        use.sm_active / use_before.sm_active,
        figures.energy_mj / before.energy_mj,
    )
    return Result(
        outcome.makespan_s / 3600,
        100 * (makespan - 1),
        use.sm_active,
        100 * (smact - 1),
        100 * smact * makespan,
        figures.energy_mj,
        100 * (energy - 1),
        100 * (energy / makespan - 1),
        figures.oom_crashes,
        alone.makespan_s / 3600,
        100 * (use.sm_occupancy / use_before.sm_occupancy - 1),
        100 * (use.memory / use_before.memory - 1),
        *(spread.p95 / 60 for spread in (figures.wait, figures.execution, figures.jct) if spread),
    )


def compared(trace: Trace, run: Run, assumed: Assumed = Assumed()) -> Result:
    """`run` beside the exclusive run, both under these assumptions."""
    return result(simulated(trace, run, assumed), simulated(trace, EXCLUSIVE, assumed))


# The band: the interference models that the simulator has, from no slowdown at all.
BAND = tuple(MODELS)
SCOPES: tuple[Scope, ...] = get_args(Scope)
ORDERS = 10  # one trace is chance


def in_orders(trace: Trace, count: int = ORDERS) -> list[Trace]:
    """The tasks in the trace's own order, and in others."""
    return [trace, *(shuffled(trace, seed) for seed in range(1, count))]


def spread(values: Iterable[float]) -> str:
    """`-30.2 % (-33.1 to -27.5)`: the median and the range."""
    found = sorted(values)
    return f"{median(found):+.1f} % ({found[0]:+.1f} to {found[-1]:+.1f})"


def shuffled(trace: Trace, seed: int) -> Trace:
    """Other tasks at the same moments."""
    moments = [task.submit_s for task in trace.tasks]
    tasks = list(trace.tasks)
    Random(seed).shuffle(tasks)
    moved = (replace(task, submit_s=at) for task, at in zip(tasks, moments, strict=True))
    return Trace(f"{trace.name}-{seed}", tuple(moved))


# -- other tasks


def wide_alone(trace: Trace) -> Trace:
    """Jobs of several GPUs ask to be alone, as CARMA had it under MPS."""
    tasks = (replace(task, exclusive=task.gpus > 1) for task in trace.tasks)
    return replace(trace, tasks=tuple(tasks))


def with_loads(change: Callable[[Task], Load]) -> Changed:
    return lambda trace: replace(
        trace, tasks=tuple(replace(task, load=change(task)) for task in trace.tasks)
    )


def is_light(task: Task) -> bool:
    return "cifar" in task.name


def light_times(factor: float) -> Changed:
    """The tasks whose SMACT is only assumed to be low keep the GPU busier, or less so."""

    def change(task: Task) -> Load:
        load = task.load
        if not is_light(task):
            return load
        return replace(
            load,
            sm_active=load.sm_active * factor,
            sm_occupancy=load.sm_occupancy * factor,
            dram_active=load.dram_active * factor,
        )

    return with_loads(change)


def dram_times(factor: float) -> Changed:
    """DRAMA is derived: all of it higher or lower."""
    return with_loads(
        lambda task: replace(task.load, dram_active=min(1.0, task.load.dram_active * factor))
    )


_BUSY = {"mobilenet_v2": 0.84, "gpt2_large": 0.95, "xlnet_base": 0.85, "xlnet_large": 0.92}


def before_the_figures(task: Task) -> Load:
    """As the catalogue had it until the figures were read: the largest batch keeps the GPU busy for
    97 % of the time (NVML), smaller ones in proportion to their rate."""
    load = task.load
    if load.model not in MEMORY_OVER_GPU or is_light(task):
        return load
    taken_s = {
        row.load.batch_size: row.duration_s
        for row in catalogue.PROFILES
        if row.load.model == load.model and row.duration_s and row.size != "light"
    }
    util = _BUSY.get(load.model, 0.97) * taken_s[max(taken_s)] / taken_s[load.batch_size]
    sm, occupancy, dram = catalogue.activity(util, util * MEMORY_OVER_GPU[load.model])
    return replace(load, sm_active=sm, sm_occupancy=occupancy, dram_active=dram)
