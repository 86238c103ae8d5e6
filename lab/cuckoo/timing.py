"""How long Cuckoo takes for a plan, and what its pruned matching loses (paper, 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from time import perf_counter, process_time
from unittest import mock

import numpy as np

from benchmarks.harness import Report, columns, verdict
from carma_simulator.experiment import Experiment, Trace
from carma_simulator.hardware import parse
from carmad import registry
from carmad.config import Settings
from carmad.core.placing.decision import Proposal
from carmad.core.placing.view import View
from carmad.errors import CarmaError
from lab import policies
from lab.cuckoo.workload import GPUS, trace
from lab.data import DATA
from lab.main import main
from lab.policies import simulate_with
from lab.traces import muri
from policies.cuckoo.groups import Edge, best_edges, matching
from policies.cuckoo.interleaving import Numbers

LINES = ((GPUS, 100, 20), (GPUS, 2000, 5), ("64x8xA100-80GB", 2000, 5))  # jobs, and plans
LIMITS_S = {100: 0.3, 2000: 0.5}  # the paper's own: 1 and 3
MATCHED = (100, 300)  # jobs, for which the full graph can be waited for
# Muri's fourth trace is not public: as many of the second one's jobs, on Muri's GPUs.
MURI, MURI_JOBS, MURI_GPUS, MURI_LIMIT_S = DATA / "muri" / "trace2.csv", 2600, "8x8xV100-32GB", 60.0


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


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole simulation, in seconds of processor time. With `recurring`, jobs are named by their
    configuration, so that profiles are known and jobs are packed."""

    recurring: bool
    jobs: int
    plans: int
    most_queued: int
    took_s: float
    plans_s: float
    worst_ms: float


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


def whole() -> Iterator[Whole]:
    for recurring in (False, True):
        yield _whole(recurring)


def _whole(recurring: bool) -> Whole:
    settings = Settings(policy="cuckoo")
    tasks = muri.read(MURI).tasks[:MURI_JOBS]
    if recurring:
        tasks = tuple(replace(task, name=f"{task.load.model}-{task.gpus}") for task in tasks)
    timed = policies.Timed(registry.bare_policy(settings))
    begun = process_time()
    simulate_with(timed, Experiment(Trace("muri", tasks), parse(MURI_GPUS), settings, "oracle"))
    took_s = process_time() - begun
    queued, plans_s = zip(*timed.plans, strict=True)
    return Whole(
        *(recurring, len(tasks), len(plans_s), max(queued)),
        *(took_s, sum(plans_s), 1000 * max(plans_s)),
    )


def pruned() -> Iterator[Pruned]:
    """On the tables that a plan for so many jobs makes."""
    for jobs in MATCHED:
        for weights in _tables(jobs):
            ends = (axis.tolist() for axis in np.triu_indices(len(weights), 1))
            table = weights.tolist()
            full = [(a, b, table[a][b]) for a, b in zip(*ends, strict=True) if table[a][b] > 0]
            few_s, few, few_edges = _matched(weights, best_edges(weights))
            full_s, whole, _ = _matched(weights, full)
            yield Pruned(jobs, few_edges, len(full), 1 - few / whole, few_s, full_s)


def _matched(weights: Numbers, edges: Sequence[Edge]) -> tuple[float, float, int]:
    begun = perf_counter()
    found = matching(edges)
    took_s = perf_counter() - begun
    return took_s, sum(float(weights[pair]) for pair in found), len(edges)


def _tables(jobs: int) -> list[Numbers]:
    """What `best_edges` is given in the first plan for so many jobs."""
    found: list[Numbers] = []

    def keep(weights: Numbers) -> list[Edge]:
        found.append(weights)
        return best_edges(weights)

    with mock.patch("policies.cuckoo.groups.best_edges", keep):
        _took_ms(GPUS, jobs, 1)
    return found


def measure() -> Report:
    lines, wholes, matchings = list(taken()), list(whole()), list(pruned())
    sections = (
        ("## A plan", _lines(lines), PLANS),
        ("## Muri's jobs on 64 GPUs", _wholes(wholes), WHOLE),
        ("## The pruned matching", _matchings(matchings), LOST),
    )
    data = {"plans": lines, "whole": wholes, "pruned": matchings}
    return Report("How long Cuckoo plans", [*chain.from_iterable(sections)], data)


PLANS = """\
Processor time of whole plans, with all jobs submitted at once. A plan covers a few jobs for each \
set of GPUs (`policies/cuckoo/members.py`), so the length of the queue hardly matters."""
WHOLE = f"""\
Muri's fourth trace is not at hand; these are the first {MURI_JOBS:,} jobs of its second one. \
Processor time of the whole simulation; `recurring`: jobs of one \
configuration have one name, so that their profiles are known and they are packed."""
LOST = """\
`weight lost` is what the matching of the pruned graph has less than that of the full one."""


def _wholes(found: Sequence[Whole]) -> str:
    return columns(
        found,
        ("recurring", lambda each: "yes" if each.recurring else "no"),
        ("jobs", "{0.jobs:,}"),
        ("most queued", "{0.most_queued:,}"),
        ("plans", "{0.plans:,}"),
        ("worst ms", "{0.worst_ms:,.0f}"),
        ("plans s", "{0.plans_s:,.0f}"),
        ("simulation s", "{0.took_s:,.0f}"),
        ("at most s", lambda _: f"{MURI_LIMIT_S:.0f}"),
        ("", lambda each: verdict(each.took_s <= MURI_LIMIT_S)),
        text=(0, 8),
    )


def _lines(taken: Sequence[Taken]) -> str:
    return columns(
        taken,
        ("GPUs", "{0.gpus}"),
        ("jobs in line", "{0.queued:,}"),
        ("plans", "{0.plans}"),
        ("median ms", "{0.median_ms:,.0f}"),
        ("worst ms", "{0.worst_ms:,.0f}"),
        ("at most ms", lambda each: f"{1000 * LIMITS_S[each.queued]:,.0f}"),
        ("", lambda each: verdict(each.worst_ms <= 1000 * LIMITS_S[each.queued])),
        text=(0, 6),
    )


def _matchings(found: Sequence[Pruned]) -> str:
    return columns(
        found,
        ("jobs", "{0.jobs:,}"),
        ("edges", "{0.full_edges:,}"),
        ("kept", "{0.edges:,}"),
        ("weight lost", lambda each: f"{100 * each.lost:.3f} %"),
        ("matched in s", "{0.full_s:.2f}"),
        ("pruned, in s", "{0.took_s:.3f}"),
        text=(),
    )


if __name__ == "__main__":
    main("cuckoo_plans", measure, MURI)
