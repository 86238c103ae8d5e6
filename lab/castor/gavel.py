"""The simulator with Gavel's pairs on V100 as its truth: ratios up to 11, and sharing often loses.

Sia's samples of jobs, as elsewhere in `lab.castor`, each training one of the configurations
of which Gavel measured pairs under MPS. Gavel tells of no utilisation: SMACT is the rate in
samples/s over that of the best batch size, and memory is made up, different for each, so that a
profile tells configurations apart. Pairs were measured on one GPU; jobs of several are slowed as
much.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from carma_simulator.catalogue import Profile, Size
from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.traces.sources import assign
from carmad.core.gpus.slowdown import beside
from carmad.core.jobs.findings import Indicator, Loaded
from carmad.gpu.kinds import KINDS
from carmad.learning.models import Boosted
from carmad.learning.training.interference import Beside, train
from lab.simulator.interference import gavel

GPU = "V100-32GB"
SIZES: tuple[Size, ...] = ("light", "medium", "heavy")
LEARNED = 0.5  # of the pairs: those that a site has seen, for the model trained there
_COLUMNS = ("model1", "batchsize1", "speed1", "model2", "batchsize2", "speed2", "mode")


@cache
def loads() -> Mapping[Load, Load]:
    """By the load of `lab.simulator.interference`, that of the simulated jobs."""
    found = sorted({sample.own for sample in gavel("v100")[0]}, key=repr)
    return {load: replace(load, memory_mib=2_000 + 300 * n) for n, load in enumerate(found)}


@cache
def speeds() -> Mapping[tuple[Load, Load], float]:
    """Of the first, beside the second."""
    return {(loads()[s.own], loads()[s.others[0]]): s.measured for s in gavel("v100")[0]}


@cache
def _folder() -> TemporaryDirectory[str]:
    """Removed at the end of the process that began the runs."""
    return TemporaryDirectory(prefix="carma-gavel-")


@cache
def pairs() -> str:
    """The interference model of the measured pairs; others slow down as `conserving` has it."""
    path = Path(_folder().name) / "v100.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(_COLUMNS)
        for one, other in sorted(speeds(), key=repr):
            if repr(one) <= repr(other) and (other, one) in speeds():
                sides = ((each.model, each.batch_size) for each in (one, other))
                (m1, b1), (m2, b2) = sides
                both = speeds()[one, other], speeds()[other, one]
                rows.writerow((m1, b1, both[0], m2, b2, both[1], "mps"))
    return f"measured:{path}"


def with_gavels_models(trace: Trace, seed: int) -> Trace:
    """The same jobs at the same times; the larger ones train what keeps a GPU busier."""
    ranked = sorted(loads().values(), key=lambda load: load.sm_active)
    known = [
        Profile(load, "", 1, SIZES[3 * n // len(ranked)], None, "Gavel")
        for n, load in enumerate(ranked)
    ]
    unknown: Iterator[Task] = (replace(task, name="", load=Load()) for task in trace.tasks)
    return assign(replace(trace, tasks=tuple(unknown)), seed, known)


def trained() -> Boosted:
    """What a server would have learned on site from half of the pairs, as jobs report them."""
    both = sorted({frozenset(pair) for pair in speeds()}, key=lambda pair: sorted(map(repr, pair)))
    seen = set(Random(0).sample(both, round(LEARNED * len(both))))
    rows = [
        Beside(beside(_profile(own), _profile(other), True), 1 / speed, repr((own, other)))
        for (own, other), speed in speeds().items()
        if frozenset((own, other)) in seen
    ]
    return train(rows, "half of Gavel's pairs on V100")


def _profile(load: Load) -> Loaded:
    """As the simulator's cards show it, without noise."""
    indicators = tuple(
        Indicator(name, getattr(load, name), 0.0)
        for name in ("dram_active", "sm_active", "sm_occupancy")
    )
    return Loaded(indicators, load.memory_mib / KINDS[GPU].memory_mib)
