"""Interference ratios of measured pairs, who learns them how well, and what Castor would decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log, sqrt
from random import Random
from statistics import fmean

from carma_simulator import catalogue
from carma_simulator.experiment import Load
from carma_simulator.interference import Additive
from carmad.core.jobs.attempt import Mode
from carmad.learning.training.interference import Beside, train
from lab.castor.theorem import best_start, sharing_benefit
from lab.data import SEEDS, folds
from lab.pairs import gavel_rates, lucid_alone
from lab.simulator import interference
from policies.castor.pairing import Ratios, at_once, ends, later

RTX_3090_MIB = 24_576
HELD_OUT = 0.2  # the paper's split is 80:20, by pair
DRAWS = 4_000  # of two jobs' remaining times, per split


@dataclass(frozen=True, slots=True)
class Side:
    """One job of a pair: what is known of both, and what became of it."""

    row: Beside
    own: Load
    other: Load

    @property
    def models(self) -> set[str]:
        return {self.own.model, self.other.model}


@dataclass(frozen=True, slots=True)
class Judged:
    """A model's answers for sides that it has not seen."""

    sides: list[Side]
    ratios: list[float]

    @property
    def rmse(self) -> float:
        errors = (
            told - side.row.target for told, side in zip(self.ratios, self.sides, strict=True)
        )
        return sqrt(fmean(error**2 for error in errors))


Answer = Callable[[Side], float]
Split = tuple[list[Side], list[Side]]  # to learn from, and to judge by


def lucid() -> list[Side]:
    """Lucid's sound pairs. Utilisation by NVML and memory; SMACT and the like follow from these in
    the catalogue, and would tell nothing more. Nor were variances published."""
    profiles = {}
    for job in lucid_alone().values():
        gpu, memory = float(job["gpu_util"]) / 100, float(job["gmem_util"]) / 100
        sm_active, _, dram_active = catalogue.activity(gpu, memory)
        profiles[job["model"], int(job["batchsize"]), sm_active, dram_active] = {
            "gpu_utilization.mean": gpu,
            "memory_utilization.mean": memory,
            "memory.share": float(job["gmem"]) / RTX_3090_MIB,
        }

    def features(load: Load) -> dict[str, float]:
        return profiles[load.model, load.batch_size, load.sm_active, load.dram_active]

    return [_side(sample, features) for sample in interference.lucid()[0]]


def gavel(gpu: str) -> list[Side]:
    """Gavel's pairs, all on one GPU: with more, none was measured. What its throughputs tell of a
    job: its samples/s as a share of those at its best batch size, how many times faster the GPU is
    than others, which tells how much the job waits for it, its batch size, and its network."""
    rates = {kind: gavel_rates(kind) for kind in ("v100", "p100", "k80")}
    samples = interference.gavel(gpu)[0]
    networks = sorted({sample.own.model for sample in samples})

    def features(load: Load) -> dict[str, float]:
        size = f" (batch size {load.batch_size})" if load.batch_size > 1 else ""
        job = f"('{load.model}{size}', 1)"
        alone = {kind: jobs[job]["null"] for kind, jobs in rates.items()}
        return {
            "rate.share": load.sm_active,
            "speedup.v100_k80": alone["v100"] / alone["k80"],
            "speedup.v100_p100": alone["v100"] / alone["p100"],
            "batch.log": log(load.batch_size),
            **{f"network.{name}": float(name == load.model) for name in networks},
        }

    return [_side(sample, features) for sample in samples]


def _side(sample: interference.Sample, features: Callable[[Load], Mapping[str, float]]) -> Side:
    (other,) = sample.others
    both = (("own", sample.own), ("other", other))
    values = {f"{who}.{k}": v for who, load in both for k, v in features(load).items()}
    pair = " + ".join(sorted(map(repr, sample.loads)))
    return Side(Beside(values, 1 / sample.measured, pair), sample.own, other)


def by_pair(sides: Sequence[Side]) -> Iterator[Split]:
    """As the paper: a fifth of the pairs. The same two networks, at other batch sizes, stay."""
    pairs = sorted({side.row.pair for side in sides})
    for seed in SEEDS:
        held_out = set(Random(seed).sample(pairs, round(HELD_OUT * len(pairs))))
        yield _split(sides, lambda side, held_out=held_out: side.row.pair in held_out)


def by_model(sides: Sequence[Side]) -> Iterator[Split]:
    """All pairs with a network that the fit has seen in none: what a server meets."""
    models = sorted(set().union(*(side.models for side in sides)))
    for seed in SEEDS:
        for held_out in folds(models, seed):
            yield _split(sides, lambda side, held_out=held_out: bool(side.models & held_out))


def _split(sides: Sequence[Side], unseen: Callable[..., bool]) -> Split:
    return [s for s in sides if not unseen(s)], [s for s in sides if unseen(s)]


def constant(sides: Sequence[Side]) -> Answer:
    mean = fmean(side.row.target for side in sides)
    return lambda side: mean


def additive(sides: Sequence[Side]) -> Answer:
    """The demands on SMs and DRAM, added up beyond 1: nothing is learned."""
    return lambda side: 1 / Additive().speeds((side.own, side.other), Mode.STREAMS)[0]


def boosted(sides: Sequence[Side], untold: str | None = None) -> Answer:
    """The model that ships; `untold`, a part of features' names, is kept from it when asked."""
    model = train([side.row for side in sides])

    def answer(side: Side) -> float:
        told = side.row.values.items()
        known = {name: value for name, value in told if untold is None or untold not in name}
        return max(1.0, model.predict(known))

    return answer


Learn = Callable[[Sequence[Side]], Answer]
LEARNERS: dict[str, Learn] = {
    "constant": constant,
    "additive": additive,
    "boosted trees": boosted,
}
GAPS: dict[str, Learn] = {
    "boosted, without the GPU's utilisation": partial(boosted, untold="gpu_utilization"),
    "boosted, without the memory's": partial(boosted, untold="memory_utilization"),
    "boosted, without the neighbour": partial(boosted, untold="other."),
}
SPLITS = {"pairs": by_pair, "networks": by_model}


def judge(splits: Iterator[Split], learn: Learn) -> Judged:
    judged = Judged([], [])
    for seen, unseen in splits:
        answer = learn(seen)
        judged.sides.extend(unseen)
        judged.ratios.extend(map(answer, unseen))
    return judged


@dataclass(frozen=True, slots=True)
class Decided:
    """Theorem 1 with foretold ratios instead of measured ones."""

    shared: float  # share of cases in which it is best to start at once, as measured
    otherwise: float  # share of cases in which it decides otherwise
    lost: float  # by how much the pair's mean JCT is longer, relative
    deviation: float  # of the sharing benefit, mean of the absolute relative


def decide(judged: Judged, durations_s: Sequence[float]) -> Decided:
    """Two jobs of Philly's durations, of which the running one has got some way at random."""
    told: dict[tuple[Load, Load], Ratios] = {}
    for side, ratio in zip(judged.sides, judged.ratios, strict=True):
        told[side.own, side.other] = (side.row.target, ratio)
    pairs = sorted((key for key in told if key[::-1] in told), key=repr)
    random = Random(0)
    shared, otherwise, lost, deviations = [], [], [], []
    for _ in range(DRAWS):
        running, new = random.choice(pairs)
        measured, foretold = zip(told[running, new], told[new, running], strict=True)
        running_s = random.choice(durations_s) * random.uniform(0.01, 1)
        new_s = random.choice(durations_s)
        best, guess = (best_start(running_s, new_s, ratios) for ratios in (measured, foretold))
        real = at_once(running_s, new_s, measured) if guess.share else later(running_s, new_s)
        shared.append(best.share)
        otherwise.append(best.share != guess.share)
        lost.append(real.pair_jct_s / best.pair_jct_s - 1)
        wait_s = running_s + new_s
        benefits = (sharing_benefit(wait_s, start.new_jct_s) for start in (real, best))
        deviations.append(abs(next(benefits) / next(benefits) - 1))
    return Decided(fmean(shared), fmean(otherwise), fmean(lost), fmean(deviations))


@dataclass(frozen=True, slots=True)
class Inner:
    """Theorem 1 by brute force."""

    cases: int
    inner: int  # a kappa between the ends did better than both
    shared: float  # share of cases in which it is best to start at once
    misjudged: float  # share in which the sign of case 2's slope alone says otherwise


def theorem(cases: int = 20_000, points: int = 100) -> Inner:
    """Times from 10 s to 10 days; ratios up to 6, which is as far as the paper's go."""
    random = Random(0)
    inner, shared, misjudged = 0, 0, 0
    for _ in range(cases):
        running_s, new_s = (exp(random.uniform(log(10), log(864_000))) for _ in range(2))
        xi_running, xi_new = ratios = (random.uniform(1, 6), random.uniform(1, 6))
        best = best_start(running_s, new_s, ratios)
        means = (
            sum(ends(running_s, new_s, ratios, running_s * n / points)) / 2
            for n in range(1, points)
        )
        inner += min(means) < best.pair_jct_s * (1 - 1e-9)
        shared += best.share
        misjudged += best.share != (2 * xi_new + xi_running - 2 * xi_running * xi_new > 0)
    return Inner(cases, inner, shared / cases, misjudged / cases)
