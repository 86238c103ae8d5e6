"""How long Cuckoo takes for a plan, and what its pruned matching loses (paper, 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from unittest import mock

import numpy as np

from benchmarks.cuckoo.workload import GPUS, trace
from benchmarks.harness import policies
from benchmarks.harness.policies import simulate_with
from carmad import registry
from carmad.config import Settings
from carmad.core.decision import Proposal
from carmad.core.view import View
from carmad.errors import CarmaError
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from policies.cuckoo import packing
from policies.cuckoo.interleaving import Numbers

LINES = ((GPUS, 100, 20), (GPUS, 2000, 5), ("64x8xA100-80GB", 2000, 5))  # jobs, and plans
LIMITS_S = {100: 0.3, 2000: 3.0}
MATCHED = (100, 300)  # jobs, for which the full graph can be waited for


@dataclass(frozen=True, slots=True)
class Taken:
    """Milliseconds of processor time."""

    gpus: str
    queued: int
    plans: int
    median_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """The matchings of one graph, and seconds for each."""

    jobs: int
    edges: int
    full_edges: int
    lost: float  # share of the full graph's weight
    took_s: float
    full_s: float


class Enough(Exception):
    """So many plans were asked for."""


@dataclass(slots=True)
class Timed(policies.Timed):
    most: int = 1

    def plan(self, view: View) -> tuple[Proposal, ...]:
        plan = policies.Timed.plan(self, view)
        if len(self.plans) == self.most:
            raise Enough
        return plan


def taken() -> Iterator[Taken]:
    """All jobs come at once; the first plans that anything is in line for."""
    for gpus, queued, plans in LINES:
        took_ms = _took_ms(gpus, queued, plans)
        yield Taken(gpus, queued, len(took_ms), median(took_ms), max(took_ms))


def _took_ms(gpus: str, queued: int, plans: int) -> list[float]:
    settings = Settings(policy="cuckoo")
    jobs = trace("Muri", 0, queued)
    at_once = replace(jobs, tasks=tuple(replace(task, submit_s=0.0) for task in jobs.tasks))
    timed = Timed(registry.bare_policy(settings), most=plans)
    try:
        simulate_with(timed, Experiment(at_once, parse(gpus), settings, "oracle"))
    except CarmaError:  # the simulator's word for `Enough`
        if len(timed.plans) < plans:
            raise
    return [1000 * plan_s for _, plan_s in timed.plans]


def pruned() -> Iterator[Pruned]:
    """On the tables that a plan for so many jobs makes."""
    for jobs in MATCHED:
        for weights in _tables(jobs):
            ends = (axis.tolist() for axis in np.triu_indices(len(weights), 1))
            table = weights.tolist()
            full = [(a, b, table[a][b]) for a, b in zip(*ends, strict=True) if table[a][b] > 0]
            few_s, few, few_edges = _matched(weights, packing.best_edges(weights))
            full_s, whole, _ = _matched(weights, full)
            yield Pruned(jobs, few_edges, len(full), 1 - few / whole, few_s, full_s)


def _matched(weights: Numbers, edges: Sequence[packing.Edge]) -> tuple[float, float, int]:
    begun = perf_counter()
    found = packing.matched(edges)
    took_s = perf_counter() - begun
    return took_s, sum(float(weights[pair]) for pair in found), len(edges)


def _tables(jobs: int) -> list[Numbers]:
    """What `best_edges` is given in the first plan for so many jobs."""
    found: list[Numbers] = []

    def keep(weights: Numbers) -> list[packing.Edge]:
        found.append(weights)
        return packing.best_edges(weights)

    with mock.patch("policies.cuckoo.groups.best_edges", keep):
        _took_ms(GPUS, jobs, 1)
    return found
