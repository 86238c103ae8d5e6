"""The traces on which `policy = "carma"` was tuned, and others on which it is judged.

They are cut to size, so that all policies' runs fit into minutes: 100 jobs of each cluster's, every
k-th, on a server or two, without jobs that are wider than that. Where both halves come
from one trace, no job is in both, but its configurations may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from carma_simulator.experiment import Trace
from carma_simulator.hardware import Cluster, parse
from carma_simulator.traces.rows import in_order
from carma_simulator.traces.sources import assign, load
from lab.asrpt import workload as asrpt
from lab.carma.paper import shuffled
from lab.cuckoo import workload as cuckoo
from lab.data import DATA

MURI, PHILLY = f"muri:{DATA}/muri/trace{{}}.csv", f"philly:{DATA}/philly/philly.csv"
SIA, TRACE_1 = f"sia:{DATA}/sia/workloads/{{}}.csv", f"carma:{DATA}/carma/trace1.csv"
HEAVY_60 = f"carma:{DATA}/carma/heavy60.csv"
V100, A100 = "{}x8xV100-32GB", "{}xA100-40GB"
ASRPT_PART = asrpt.SERVERS * asrpt.SIZE // 8  # the part of the paper's cluster that 8 GPUs are


@dataclass(frozen=True, slots=True)
class Case:
    trace: Trace
    cluster: Cluster

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.cluster.nodes)


Cases = tuple[Callable[[], Case], ...]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    what: str
    cases: Cases


def thinned(source: str, every: int, first: int, gpus: str, jobs: int = 100) -> Case:
    cluster = parse(gpus)
    widest = sum(node.gpus for node in cluster.nodes)
    trace = load(source)
    kept = [task for task in trace.tasks[first::every] if task.gpus <= widest][:jobs]
    return Case(in_order(trace.name, kept), cluster)


def whole(source: str, gpus: str) -> Case:
    return Case(load(source), parse(gpus))


def in_order_of(source: str, gpus: str, seed: int) -> Case:
    """The tasks at the same moments in another order; 0: in their own."""
    trace = load(source)
    return Case(shuffled(trace, seed) if seed else trace, parse(gpus))


def of_asrpt(seed: int) -> Case:
    """Jobs as in `lab.asrpt`, of whose GPUs' loads nothing is known: drawn from the
    catalogue."""
    made = asrpt.made(150, seed, layouts=False, part=ASRPT_PART)
    return Case(assign(made, seed), parse(V100.format(1)))


def of_cuckoo(seed: int) -> Case:
    """Jobs as in `lab.cuckoo`, stages declared; interference is as in the other families."""
    made = cuckoo.trace("Muri", seed, 100)
    tasks = [
        replace(
            task, load=replace(task.load, sm_active=cuckoo.load(task, cuckoo.FASTEST).sm_active)
        )
        for task in made.tasks
    ]
    return Case(Trace(made.name, tuple(tasks)), parse(cuckoo.GPUS))


def _muri(number: int, every: int, nodes: int, *firsts: int) -> Cases:
    source, gpus = MURI.format(number), V100.format(nodes)
    return tuple(partial(thinned, source, every, first, gpus) for first in firsts)


def _philly(*seeds: int) -> Cases:
    drawn = (f"{PHILLY}?seed={seed}&tasks=8000" for seed in seeds)
    return tuple(partial(thinned, source, 40, 0, V100.format(1)) for source in drawn)


def _generated(name: str, gpus: int, *seeds: int) -> Cases:
    sources = (f"generate:{name}?seed={seed}&tasks=60" for seed in seeds)
    return tuple(partial(whole, source, A100.format(gpus)) for source in sources)


def _orders(source: str, gpus: int) -> Cases:
    return tuple(partial(in_order_of, source, A100.format(gpus), seed) for seed in range(5))


def _sia(*names: str) -> Cases:
    return tuple(partial(thinned, SIA.format(name), 2, 0, "2x8xA100-40GB") for name in names)


def _asrpt(*seeds: int) -> Cases:
    return tuple(partial(of_asrpt, seed) for seed in seeds)


def _cuckoo(*seeds: int) -> Cases:
    return tuple(partial(of_cuckoo, seed) for seed in seeds)


TUNING = (
    Family("Muri 1", "every 8th job, 8 V100", _muri(1, 8, 1, 1, 2, 3)),
    Family("Muri 2", "every 16th job, 8 V100", _muri(2, 16, 1, 1, 2)),
    Family("Philly", "8,000 jobs drawn, every 40th, 8 V100", _philly(1, 2, 3)),
    Family("Sia", "every 2nd job, 16 A100", _sia("philly-workload-1", "saturn-workload-2")),
    Family("lab", "60 jobs, 2 A100", _generated("lab", 2, 1, 2, 3, 4)),
    Family(
        "carma-1", "60 jobs like those of trace 1, 3 A100", _generated("carma-1", 3, 1, 2, 3, 4)
    ),
    Family(
        "carma-2", "60 jobs like those of trace 2, 4 A100", _generated("carma-2", 4, 1, 2, 3, 4)
    ),
    Family("A-SRPT", "150 jobs as in its benchmark, 8 V100", _asrpt(11, 12, 13)),
)
JUDGING = (
    Family("Muri 1", "other jobs of it, 8 V100", _muri(1, 8, 1, 0, 4, 5, 6, 7)),
    Family("Muri 2", "other jobs of it, 8 V100", _muri(2, 16, 1, 5, 7, 9, 11, 13)),
    Family("Muri 3", "every 4th job, 16 V100", _muri(3, 4, 2, 0, 1, 2, 3, 501)),
    Family("Philly", "other stretches, 8 V100", _philly(11, 12, 13, 14, 15)),
    Family(
        "Sia",
        "every 2nd job, 16 A100",
        _sia(
            *(f"philly-workload-{n}" for n in (2, 4, 6)), "saturn-workload-3", "saturn-workload-5"
        ),
    ),
    Family("lab", "60 jobs, 2 A100", _generated("lab", 2, 11, 12, 13, 14, 15)),
    Family("trace 1", "the CARMA paper's, in five orders, 3 A100", _orders(TRACE_1, 3)),
    Family("heavy-60", "the CARMA artifact's, in five orders, 4 A100", _orders(HEAVY_60, 4)),
    Family("A-SRPT", "150 jobs as in its benchmark, 8 V100", _asrpt(0, 1, 2, 3, 4)),
    Family("Cuckoo", "100 jobs like its own, its 16 GPUs", _cuckoo(0, 1, 2, 3, 4)),
)


@cache
def case(family: Family, number: int) -> Case:
    return family.cases[number]()
