"""How long Castor takes for a plan, in states that a simulated run comes to (paper, 5.2.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median

from benchmarks.harness import percentile
from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carmad import registry
from carmad.config import Settings
from lab.castor.workload import profiled_before, sampled
from lab.policies import Timed, simulate_with

CLUSTERS = {16: "2x8xA6000-48GB", 128: "16x8xA6000-48GB"}  # by GPUs
HURRY = {16: 1.0, 128: 20.0}  # how many times as fast the jobs come: so that many are in line
QUEUED = range(50, 151)  # jobs in line in the views that count


@dataclass(frozen=True, slots=True)
class Taken:
    """Processor time."""

    policy: str
    gpus: int
    plans: int
    mean_ms: float
    median_ms: float
    p99_ms: float
    worst_ms: float


def taken(policies: tuple[str, ...]) -> Iterator[Taken]:
    for policy in policies:
        for gpus in CLUSTERS:
            took_ms = _took_ms(policy, gpus)
            yield Taken(
                policy,
                gpus,
                len(took_ms),
                fmean(took_ms),
                median(took_ms),
                percentile(took_ms, 0.99),
                max(took_ms),
            )


def _took_ms(policy: str, gpus: int) -> list[float]:
    settings = Settings(policy=policy)
    trace = profiled_before(sampled("philly", 0))
    tasks = (replace(task, submit_s=task.submit_s / HURRY[gpus]) for task in trace.tasks)
    crowd = replace(trace, tasks=tuple(tasks))
    timed = Timed(registry.bare_policy(settings))
    simulate_with(timed, Experiment(crowd, parse(CLUSTERS[gpus]), settings, "oracle"))
    return [1000 * plan_s for queued, plan_s in timed.plans if queued in QUEUED]
