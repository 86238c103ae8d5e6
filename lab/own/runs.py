"""One case under one policy: what came of it."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Outcome
from carmad import registry
from carmad.config import Collocation, Limits, Settings, Suspending
from carmad.core.placing.view import Policy
from lab.castor import gavel
from lab.lucid.runs import PHYSICS
from lab.own.families import Case
from lab.policies import simulate_with

OURS = "carma"
SUSPENDING = "carma, suspending"
HOST_MIB = 65_536  # of the host's memory, for each GPU, for jobs that are suspended
GAVEL = "gavel"  # as interference
SHORTEST_WAIT_S = 60.0  # to which a user's is compared


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known of the jobs, and what is true of them."""

    name: str
    what: str
    declared: bool = True  # their durations; else as the predictor `history` learns them
    error: float = 0.0  # σ of the log-normal factor on declared durations
    memory: str = "oracle"
    interference: str = "conserving"


KNOWN = Condition("known", "durations and memory known")
PREDICTED = Condition("predicted", "durations predicted from earlier runs", declared=False)
WRONG = Condition("wrong", "durations wrong by a factor of three (σ of the log)", error=math.log(3))
NOTHING = Condition("nothing", "neither durations nor memory known", declared=False, memory="none")
ADDITIVE = Condition("additive", "interference is `additive`", interference="additive")
MEASURED = Condition(
    "measured",
    "jobs train what Gavel measured in pairs, and slow each other down as these (MPS)",
    interference=GAVEL,
)
FREE = Condition("free", "sharing slows nobody down", interference="none")


@dataclass(frozen=True, slots=True)
class Ran:
    jct_s: float
    p99_s: float
    makespan_s: float
    ooms: int
    unfinished: int
    shared: float  # mean slowdown while running
    cpu_s: float
    suspensions: int
    waits_s: Mapping[str, float] = field(repr=False)  # the mean of each user, suspended or not


def run(
    case: Case,
    policy: str | Callable[[Settings], Policy],
    condition: Condition,
    suspends: bool = False,
) -> Ran:
    """`suspends`: jobs may be suspended, at the cost that the settings assume, and moved."""
    settings = Settings(
        limits=Limits(preemption=policy == "tiresias"),
        plugins={"policies.asrpt": {"reserve": False}},  # CARMA's variant
    )
    if suspends or policy == SUSPENDING:
        settings = replace(
            settings,
            limits=Limits(preemption="suspend"),
            suspend=Suspending(host_memory_mib=HOST_MIB * case.gpus, moves=True),
        )
    trace, interference = case.trace, condition.interference
    if interference == GAVEL:
        trace, interference = gavel.with_gavels_models(trace, 0), gavel.pairs()
        mps = Collocation(mps=True, mps_multiuser=True, mps_scope="node")
        settings = replace(settings, collocation=mps)
    made = (
        registry.bare_policy(replace(settings, policy=policy.partition(",")[0]))
        if isinstance(policy, str)
        else policy(settings)
    )
    experiment = Experiment(
        trace,
        case.cluster,
        settings,
        estimator=condition.memory,
        interference=interference,
        physics=replace(PHYSICS, duration_error=condition.error),
        expected=condition.declared,
    )
    begun = time.process_time()
    outcome = simulate_with(made, experiment)
    cpu_s = time.process_time() - begun
    print(f"{condition.name}, {case.trace.name}, {made.name}: {cpu_s:.1f} s", file=sys.stderr)
    return _figures(outcome, cpu_s)


def _figures(outcome: Outcome, cpu_s: float) -> Ran:
    figures = metrics.figures(outcome)
    waits: dict[str, list[float]] = defaultdict(list)
    for job in outcome.jobs:
        if times := metrics.times(job):
            waits[job.task.user].append(times.wait_s)
    assert figures.jct and figures.slowdown
    return Ran(
        figures.jct.mean,
        figures.jct.p99,
        outcome.makespan_s,
        figures.oom_crashes,
        figures.jobs - figures.finished,
        figures.slowdown.mean,
        cpu_s,
        outcome.suspensions,
        {user: fmean(found) for user, found in waits.items()},
    )


def longest_wait(ours: Ran, fifo: Ran) -> float:
    """The most that a user waits, on average, relative to the same under FIFO with sharing."""
    return max(
        wait_s / max(SHORTEST_WAIT_S, fifo.waits_s[user]) for user, wait_s in ours.waits_s.items()
    )
