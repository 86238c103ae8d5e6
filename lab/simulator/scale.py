"""Whole clusters through the simulator: time, memory and growth.

Philly's 82,247 jobs on 2,000 GPUs and Muri's first trace on 64, each run in a process of its own,
as its peak of memory is measured. Judged is processor time: the machine is shared.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import sys
import time
from dataclasses import dataclass, replace

from benchmarks.harness import Report, columns, verdict
from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Settings
from lab.data import DATA
from lab.main import main

PHILLY, PHILLY_GPUS = f"philly:{DATA}/philly/philly.csv", "250x8xV100-32GB"
MURI, MURI_GPUS = f"muri:{DATA}/muri/trace1.csv", "8x8xV100-32GB"
SIZES = (20_000, 40_000, 82_247)
POLICIES = ("fifo", "sjf", "magm")
SHARING = ("magm",)  # work over capacity is no bound for these
RUNS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    jobs: int
    policy: str
    cpu_s: float
    wall_s: float
    peak_mib: float
    jct_mean_s: float
    jct_bound_s: float
    makespan_h: float
    bound_h: float
    events: int
    queue_max: int


def measure() -> Report:
    philly = [middle(PHILLY, PHILLY_GPUS, p, n, runs=1) for p in POLICIES for n in SIZES[:2]]
    philly += [middle(PHILLY, PHILLY_GPUS, policy, SIZES[2], RUNS) for policy in POLICIES]
    philly.sort(key=lambda one: (POLICIES.index(one.policy), one.jobs))
    muri = [middle(MURI, MURI_GPUS, policy, 0, RUNS) for policy in ("fifo", "sjf", "srtf", "magm")]
    return Report(
        "Clusters, simulated",
        [
            f"## Philly on 2,000 GPUs ({PHILLY_GPUS}); wanted: ≤ 60 s and ≤ 2 GiB each",
            _table(philly, cpu_s=60.0),
            _growth(philly),
            f"## Muri's trace 1 on 64 GPUs ({MURI_GPUS}); wanted: ≤ 2 s unless it shares",
            _table(muri, cpu_s=2.0, exempt=SHARING),
        ],
        {"runs": philly + muri},
        [f"processor time of one process; whole traces: median of {RUNS} runs"],
    )


def middle(source: str, gpus: str, policy: str, jobs: int, runs: int) -> Measured:
    """The run of median processor time; `jobs`: the first so many of the trace, 0 for all."""
    measured = []
    for _ in range(runs):
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            measured.append(alone.apply(_run, (source, gpus, policy, jobs)))
        print(f"{policy}, {measured[-1].jobs}: {measured[-1].cpu_s:.1f} s", file=sys.stderr)
    cpu_s = statistics.median_low(one.cpu_s for one in measured)
    return next(one for one in measured if one.cpu_s == cpu_s)


def _run(source: str, gpus: str, policy: str, jobs: int) -> Measured:
    trace = load(source)
    if jobs:
        trace = Trace(trace.name, trace.tasks[:jobs])
    settings = Settings(policy=policy)
    settings = replace(settings, limits=replace(settings.limits, preemption=True))
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = simulate(Experiment(trace, parse(gpus), settings))
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    figures, bounds = metrics.figures(outcome), metrics.bounds(outcome)
    assert figures.finished == len(trace.tasks) and figures.jct and bounds.jct_mean_s
    assert bounds.makespan_s is not None and bounds.unshared_makespan_s is not None
    return Measured(
        jobs=len(trace.tasks),
        policy=policy,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        jct_mean_s=figures.jct.mean,
        jct_bound_s=bounds.jct_mean_s,
        makespan_h=outcome.makespan_s / 3600,
        bound_h=max(bounds.makespan_s, 0.0 if policy in SHARING else bounds.unshared_makespan_s)
        / 3600,
        events=outcome.events,
        queue_max=figures.queue_max,
    )


def _table(runs: list[Measured], cpu_s: float, exempt: tuple[str, ...] = ()) -> str:
    def met(one: Measured) -> str:
        judged = one.policy not in exempt
        return verdict(one.cpu_s <= cpu_s and one.peak_mib <= 2048 if judged else None)

    return columns(
        runs,
        ("policy", "{0.policy}"),
        ("jobs", "{0.jobs:,}"),
        ("processor s", "{0.cpu_s:.2f}"),
        ("wall s", "{0.wall_s:.2f}"),
        ("peak MiB", "{0.peak_mib:.0f}"),
        ("µs per event", lambda one: f"{one.cpu_s / one.events * 1e6:.0f}"),
        ("longest queue", "{0.queue_max}"),
        ("mean JCT h", lambda one: f"{one.jct_mean_s / 3600:.2f}"),
        ("no-wait", lambda one: f"{one.jct_bound_s / 3600:.2f}"),
        ("makespan h", "{0.makespan_h:.1f}"),
        ("bound", "{0.bound_h:.1f}"),
        ("", met),
        text=(0, 11),
    )


def _growth(runs: list[Measured]) -> str:
    """Time per n·log n, relative to the smallest: 1 or less is what was wanted."""
    lines = ["Time per job and per log n, relative to that of the fewest jobs (≤ 1 wanted):", ""]
    for policy in POLICIES:
        mine = [one for one in runs if one.policy == policy]
        costs = [one.cpu_s / (one.jobs * math.log(one.jobs)) for one in mine]
        told = ", ".join(
            f"{one.jobs:,}: {cost / costs[0]:.2f}" for one, cost in zip(mine, costs, strict=True)
        )
        lines.append(f"- {policy}: {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    main("scale", measure, DATA)
