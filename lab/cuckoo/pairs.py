"""How far the models of packed jobs are off on pairs that somebody measured (4.3, figure 10).

- Lucid's pairs, on one RTX 3090 under streams: an iteration is a batch at the speed alone, and of
  it as much on the GPU as NVML says, the rest loading, as `policies.cuckoo.members` derives it.
- Gavel's on one V100 under MPS, of the models that Muri has, too: its rate alone, divided as Muri
  measured it on one GPU (A3C as A2C; ResNet-50 as in `workload`).

λ of the GPU is fitted on the pairs of half of the models and judged on those of the other half.
One GPU has no network to share: nothing here tells of that λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from random import Random
from statistics import fmean, median

import numpy as np

from carmad.core.jobs.findings import StageTimes
from lab.cuckoo import truth
from lab.cuckoo.muri import Exclusive
from lab.cuckoo.workload import FORWARD_SHARE, alone_s, by_muri, gpu_share
from lab.pairs import GUESSED, gavel_name, gavel_rates, lucid_alone, lucid_pairs
from policies.cuckoo.interleaving import Asynchronous, Model, Phases

SPLITS = range(10)
LAMBDAS = tuple(round(1.0 + 0.1 * n, 1) for n in range(11))
EXAMPLE = 2.0  # the paper's λ (3.2.3)
ALIKE = 1.25  # times as long an iteration as the other's, at most: in step both lose little
SHARED_MODELS = {"A3C": "A2C", "ResNet-18": "ResNet18", "ResNet-50": "ResNet50"}  # Gavel's, ours

Speeds = tuple[float, float]  # relative to alone


@dataclass(frozen=True, slots=True)
class Pair:
    models: frozenset[str]
    jobs: tuple[StageTimes, StageTimes]
    measured: Speeds

    @property
    def alike(self) -> bool:
        one_s, other_s = map(alone_s, self.jobs)
        return max(one_s, other_s) <= ALIKE * min(one_s, other_s)


@dataclass(frozen=True, slots=True)
class Found:
    """Mean relative errors of a model on pairs of models that it was not fitted on."""

    data: str
    model: str
    pairs: int
    gpu: float | None  # λ, the median of the splits; None: it has none
    group: float  # of the pair's throughput, both speeds added up
    alike: float | None  # the same where iterations are about as long; None: too few such pairs
    job: float  # of each job's


def lucid() -> list[Pair]:
    """Those that are sound on both sides."""
    found = []
    for pair in lucid_pairs():
        one, other = (lucid_alone()[job] for job in pair.jobs)
        models = frozenset((one["model"], other["model"]))
        if not pair.unsound and not models & {*GUESSED}:
            first, second = (min(1.0, speed) for speed in pair.speeds)
            jobs = _by_utilization(one), _by_utilization(other)
            found.append(Pair(models, jobs, (first, second)))
    return found


def gavel() -> list[Pair]:
    rates = gavel_rates("v100")
    known = [name for name in rates if gavel_name(name)[0] in SHARED_MODELS]
    found = []
    for one, other in combinations_with_replacement(known, 2):
        together = rates[one].get(other) or rates[other][one][::-1]
        if min(together) <= 0:
            continue  # out of memory
        first, second = (
            min(1.0, rate / rates[name]["null"])
            for rate, name in zip(together, (one, other), strict=True)
        )
        models = [gavel_name(name)[0] for name in (one, other)]
        stages = [
            _by_muri(model, 1 / rates[name]["null"])
            for model, name in zip(models, (one, other), strict=True)
        ]
        found.append(Pair(frozenset(models), (stages[0], stages[1]), (first, second)))
    return found


def judged() -> Iterator[Found]:
    for data, pairs in (("Lucid, RTX 3090", lucid()), ("Gavel, V100", gavel())):
        for name, foretell in MODELS.items():
            yield _judged(data, name, pairs, foretell)
        for name, foretell in (("AM", _am), ("AM, iterations made even", _am_even)):
            yield _judged(data, f"{name}, λ = 2", pairs, _fixed(foretell, EXAMPLE))


def _judged(data: str, name: str, pairs: Sequence[Pair], foretell: Foretell) -> Found:
    told = {gpu: foretell(pairs, gpu) for gpu in LAMBDAS}
    lambdas, groups, alike, jobs, count = [], [], [], [], 0
    for seen, unseen in _splits(pairs):
        gpu = min(LAMBDAS, key=lambda x: fmean(_group(pairs[n], told[x][n]) for n in seen))
        lambdas.append(gpu)
        count += len(unseen)
        for n in unseen:
            error = _group(pairs[n], told[gpu][n])
            groups.append(error)
            jobs += _jobs(pairs[n], told[gpu][n])
            if pairs[n].alike:
                alike.append(error)
    fitted = len({tuple(told[gpu]) for gpu in LAMBDAS}) > 1
    return Found(
        *(data, name, count, median(lambdas) if fitted else None),
        *(fmean(groups), fmean(alike) if len(alike) >= len(SPLITS) else None, fmean(jobs)),
    )


def _splits(pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of one half of the models, and of the other; mixed ones are in neither."""
    models = sorted(frozenset().union(*(pair.models for pair in pairs)))
    for seed in SPLITS:
        half = frozenset(Random(seed).sample(models, len(models) // 2))
        seen = [n for n, pair in enumerate(pairs) if pair.models <= half]
        yield seen, [n for n, pair in enumerate(pairs) if not pair.models & half]


def _group(pair: Pair, told: Speeds) -> float:
    return abs(sum(told) / sum(pair.measured) - 1)


def _jobs(pair: Pair, told: Speeds) -> list[float]:
    return [abs(each / real - 1) for each, real in zip(told, pair.measured, strict=True)]


# -- the models: the speeds of all pairs with so large a λ

Foretell = Callable[[Sequence[Pair], float], list[Speeds]]


def _am(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    return _in_step(pairs, Asynchronous(gpu=gpu))


def _am_even(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    return _in_step(pairs, Asynchronous(gpu=gpu), even=True)


def _muri(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    return _in_step(pairs, Exclusive())


def _muri_even(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    return _in_step(pairs, Exclusive(), even=True)


def _free(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    return [truth.speeds(pair.jobs, gpu, truth.LAMBDA_NETWORK) for pair in pairs]


def _shares(pairs: Sequence[Pair], gpu: float) -> list[Speeds]:
    """As if nobody knew when: the more of its time either computes, the more often both do."""
    overlaps = (gpu_share(one) * gpu_share(other) for one, other in (pair.jobs for pair in pairs))
    speeds = (1 / (1 + (gpu - 1) * overlap) for overlap in overlaps)
    return [(speed, speed) for speed in speeds]


def _fixed(foretell: Foretell, gpu: float) -> Foretell:
    return lambda pairs, _: foretell(pairs, gpu)


def _in_step(pairs: Sequence[Pair], model: Model, even: bool = False) -> list[Speeds]:
    """Of jobs that do an iteration each in a round, in the better of their two orders.

    `even`: as if iterations took both as long alone (`policies.cuckoo.groups`)."""
    first, second = (Phases.of([pair.jobs[n] for pair in pairs]) for n in (0, 1))
    if even:
        first, second = (each.slower(1 / model.iteration_s((each,))) for each in (first, second))
    round_s = np.minimum(model.iteration_s((first, second)), model.iteration_s((second, first)))
    one, other = (np.minimum(1, model.iteration_s((each,)) / round_s) for each in (first, second))
    return list(zip(one.tolist(), other.tolist(), strict=True))


MODELS: Mapping[str, Foretell] = {
    "AM": _am,
    "Muri-P": _muri,
    "AM, iterations made even": _am_even,
    "Muri-P, iterations made even": _muri_even,
    "free running": _free,
    "GPU shares": _shares,
}


# -- where the stages are from


def _by_utilization(row: Mapping[str, str]) -> StageTimes:
    busy = float(row["gpu_util"]) / 100
    return _divided(int(row["batchsize"]) / float(row["speed"]), busy)


def _by_muri(model: str, iteration_s: float) -> StageTimes:
    known = by_muri(SHARED_MODELS[model], 64, "V100-32GB", gpus=1)
    computing_s = known.forward_s + known.backward_s
    return _divided(iteration_s, computing_s / (known.load_s + computing_s))


def _divided(iteration_s: float, busy: float) -> StageTimes:
    return StageTimes(
        iteration_s * (1 - busy),
        iteration_s * busy * FORWARD_SHARE,
        iteration_s * busy * (1 - FORWARD_SHARE),
    )
