"""How long Castor takes for a plan, in states that a simulated run comes to (paper, 5.2.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from time import process_time
from unittest.mock import patch

from benchmarks.castor_workloads import profiled_before, sampled
from benchmarks.rows import percentile
from carmad import registry
from carmad.config import Settings
from carmad.plugin import Job, Proposal, View
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from carmad.sim.run import simulate

CLUSTERS = {16: "2x8xA6000-48GB", 128: "16x8xA6000-48GB"}  # by GPUs
HURRY = {16: 1.0, 128: 20.0}  # how many times as fast the jobs come: so that many are in line
QUEUED = range(50, 151)  # jobs in line in the views that count


@dataclass(slots=True)
class Timed:
    """A policy, and the milliseconds of processor time that its plans took."""

    policy: registry.Policy
    name: str = "castor"
    took_ms: list[float] = field(default_factory=list)

    def order(self, job: Job) -> float:
        return self.policy.order(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        begun = process_time()
        plan = self.policy.plan(view)
        if len(view.queue) in QUEUED:
            self.took_ms.append((process_time() - begun) * 1000)
        return plan


@dataclass(frozen=True, slots=True)
class Taken:
    policy: str
    gpus: int
    plans: int
    mean_ms: float
    median_ms: float
    p99_ms: float
    worst_ms: float


def measure(policies: tuple[str, ...]) -> Iterator[Taken]:
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
    timed = Timed(registry.bare_policy(settings), policy)
    with patch.object(registry, "bare_policy", lambda _: timed):
        simulate(Experiment(crowd, parse(CLUSTERS[gpus]), settings, "oracle"))
    return timed.took_ms
