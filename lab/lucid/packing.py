"""Lucid's Packing Analyze Model on the artifact's pairs: how its labels come about, how well they
are foretold of networks that were not seen, and what packing by them does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from statistics import fmean
from typing import cast

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from carmad import plugin
from carmad.learning.models import Tree
from lab.data import SEEDS, folds
from lab.lucid import packing_tree
from lab.lucid.packing_tree import CLASSES, Pair, Row
from lab.pairs import Job, lucid_alone, lucid_pairs

CARD_MIB = 24_576  # RTX 3090
FREE = 0.85  # the speed that counts as free of interference (3.3)
# Limits for the sum of the utilisations that two jobs have alone: the default, and all the time
# that a GPU has.
GUARD, ALL_OF_IT = 1.2, 1.0
GUARDS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
SPLITS = range(20)  # of the artifact's kind
SPLIT = 0.3  # what the artifact tests on

Scores = Mapping[Job, int]
Average = Callable[[Sequence[Pair]], Mapping[object, float]]
Fit = Callable[[Sequence[Row]], Tree]


def fit_shipped(table: Sequence[Row]) -> Tree:
    """As the tree that ships."""
    return packing_tree.fit(table, "", 0.0)


def own_speeds(pairs: Sequence[Pair]) -> dict[object, float]:
    """What the artifact labels by: the average over the job's own speeds."""
    turned = [(one, other, two, first) for one, other, first, two in pairs]
    return packing_tree.average_speeds(turned)


def both_speeds(pairs: Sequence[Pair]) -> dict[object, float]:
    own, others = own_speeds(pairs), packing_tree.average_speeds(pairs)
    return {job: (own[job] + others[job]) / 2 for job in own}


def worse_speeds(pairs: Sequence[Pair]) -> dict[object, float]:
    own, others = own_speeds(pairs), packing_tree.average_speeds(pairs)
    return {job: min(own[job], others[job]) for job in own}


AVERAGES: dict[str, Average] = {
    "its neighbours' speeds (the paper's words; ours)": packing_tree.average_speeds,
    "its own speeds (the artifact)": own_speeds,
    "mean of the two": both_speeds,
    "the lower of the two": worse_speeds,
}


@cache
def pairs() -> tuple[Pair, ...]:
    return tuple((*pair.jobs, *pair.speeds) for pair in lucid_pairs())


def _jobs(pair: Pair) -> tuple[Job, Job]:
    return cast(Job, pair[0]), cast(Job, pair[1])


def authors_label(job: Job) -> str:
    return CLASSES[int(lucid_alone()[job]["label"])]


def labelled_score(tree: Tree, job: plugin.Job, memory_mib: int) -> int | None:
    """The authors' label of the configuration that has the job's profile, whatever the tree."""
    profile = job.profile
    if profile is None:
        return None

    def distance(row: Mapping[str, str]) -> float:
        busy = 100 * (profile.mean("gpu_utilization") or 0.0) - float(row["gpu_util"])
        return abs(busy) + abs(profile.peak_mib - float(row["gmem"]))

    return int(min(lucid_alone().values(), key=distance)["label"])


def rows(
    average: Average = packing_tree.average_speeds,
    without: Sequence[str] = (),
    thresholds: tuple[float, float] = (packing_tree.TINY, packing_tree.MEDIUM),
) -> list[Row]:
    """All configurations but those of the networks `without`, whose pairs do not count either.

    Nothing was measured of ten, those of BERT, ResNet-50 and Transformer: they keep the authors'
    label, which is Jumbo for each.
    """
    seen = [pair for pair in pairs() if not {job[0] for job in _jobs(pair)} & {*without}]
    speeds = average(seen)
    return [
        {
            "job": job,
            "model": job[0],
            "gpu_utilization": float(row["gpu_util"]) / 100,
            "memory_utilization": float(row["gmem_util"]) / 100,
            "memory_share": float(row["gmem"]) / CARD_MIB,
            "amp": float(job[2]),
            "label": (
                packing_tree.label(speeds[job], *thresholds)
                if job in speeds
                else authors_label(job)
            ),
        }
        for job, row in lucid_alone().items()
        if job[0] not in without
    ]


@cache
def by_thresholds(tiny: float, medium: float) -> Tree:
    return packing_tree.fit(rows(thresholds=(tiny, medium)), "", 0.0)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of the tree, by label definition. Shares of configurations."""

    labels: str
    counts: tuple[int, ...]  # Tiny, Medium, Jumbo
    authors: float  # how many labels are the authors', among configurations with pairs
    each_model: float  # each network held out in turn
    folds: tuple[float, ...]  # quarters of the networks, a figure per seed
    at_random: float  # 30 % of the configurations, whatever their network
    seen: float  # of the rows it was trained on
    leaves: int


def accuracy(name: str, table: Sequence[Row]) -> Accuracy:
    measured = {job for pair in pairs() for job in pair[:2]}
    known = [row for row in table if row["job"] in measured]
    tree = packing_tree.fit(table, "", 0.0)
    models = sorted({row["model"] for row in table})
    at_random = [
        _right([table[n] for n in unseen], [table[n] for n in seen])
        for seen, unseen in (_split(len(table), seed) for seed in SPLITS)
    ]
    return Accuracy(
        labels=name,
        counts=tuple(sum(row["label"] == label for row in table) for label in CLASSES),
        authors=fmean(row["label"] == authors_label(row["job"]) for row in known),
        each_model=held_out(table, [{model} for model in models]),
        folds=tuple(held_out(table, folds(models, seed)) for seed in SEEDS),
        at_random=fmean(at_random),
        seen=fmean(tree.predict(row) == row["label"] for row in table),
        leaves=(len(tree.nodes) + 1) // 2,
    )


def accuracies() -> list[Accuracy]:
    found = [accuracy(name, rows(average)) for name, average in AVERAGES.items()]
    by_hand = [{**row, "label": authors_label(row["job"])} for row in rows()]
    return [*found, accuracy("the authors' own, by hand", by_hand)]


def as_in_the_artifact() -> float:
    """The authors' labels, foretold on a random third of the configurations from the profile *and*
    from the average measured speed and the label by it, which their script leaves among the
    features. A mean over splits; a configuration without pairs has speed 0 there."""
    speeds = own_speeds(pairs())
    features, labels = [], []
    for row in rows():
        speed = speeds.get(row["job"], 0.0)
        label = CLASSES.index(packing_tree.label(speed))
        features.append([*(float(row[name]) for name in packing_tree.FEATURES), speed, label])
        labels.append(CLASSES.index(authors_label(row["job"])))
    right = []
    for seed in SPLITS:
        seen, unseen = _split(len(labels), seed)
        tree = DecisionTreeClassifier(random_state=0, ccp_alpha=0.0001)  # the artifact's pruning
        tree.fit([features[n] for n in seen], [labels[n] for n in seen])
        right.append(tree.score([features[n] for n in unseen], [labels[n] for n in unseen]))
    return fmean(right)


def _split(count: int, seed: int) -> tuple[list[int], list[int]]:
    seen, unseen = train_test_split(np.arange(count), test_size=SPLIT, random_state=seed)
    return seen.tolist(), unseen.tolist()


def held_out(table: Sequence[Row], parts: Sequence[set[str]], fit: Fit = fit_shipped) -> float:
    """How often a tree from the other networks is right."""
    right = 0.0
    for fold in parts:
        unseen = [row for row in table if row["model"] in fold]
        seen = [row for row in table if row["model"] not in fold]
        right += len(unseen) * _right(unseen, seen, fit)
    return right / len(table)


def _right(unseen: Sequence[Row], seen: Sequence[Row], fit: Fit = fit_shipped) -> float:
    tree = fit(seen)
    return fmean(tree.predict(row) == row["label"] for row in unseen)


@dataclass(frozen=True, slots=True)
class Packing:
    """What comes of packing all pairs whose scores and GPU utilisations add up to no more than the
    capacities, and whose memory fits the card."""

    scores: str
    capacity: int | None  # None: whatever the scores
    utilization: float | None  # the guard's limit; None: no guard
    pairs: int  # that are packed
    free: float  # the share of them whose mean speed is at least 0.85
    found: float  # the share of all such pairs that are packed
    both_free: float  # the share of them in which neither job is slower than that


def packings() -> list[Packing]:
    tree = packing_tree.fit(rows(), "", 0.0)
    told = {row["job"]: CLASSES.index(tree.predict(row)) for row in rows()}
    labels = {row["job"]: CLASSES.index(row["label"]) for row in rows()}
    by_hand = {job: CLASSES.index(authors_label(job)) for job in lucid_alone()}
    unseen_pairs = unseen_scores()
    sources: dict[str, Callable[[Pair], int]] = {
        "the tree, neither network seen": lambda pair: unseen_pairs[pair[0], pair[1]],
        "the tree, all seen": lambda pair: _sum(told, pair),
        "the labels themselves": lambda pair: _sum(labels, pair),
        "the authors' labels": lambda pair: _sum(by_hand, pair),
    }
    found = [pack(name, score, gss, None) for gss in (2, 1) for name, score in sources.items()]
    unseen, shipped = list(sources.items())[:2]
    found += [pack(*unseen, gss, guard) for gss in (2, 1) for guard in (GUARD, ALL_OF_IT)]
    found += [pack(*shipped, 2, guard) for guard in (GUARD, ALL_OF_IT)]
    return found + [pack("none", lambda _: 0, None, guard) for guard in GUARDS]


def pack(
    name: str, score: Callable[[Pair], int], capacity: int | None, guard: float | None
) -> Packing:
    packed = [
        pair
        for pair in pairs()
        if (capacity is None or score(pair) <= capacity)
        and (guard is None or _utilization(pair) <= guard)
        and _fits(pair)
    ]
    free = [pair for pair in packed if _mean(pair) >= FREE]
    return Packing(
        scores=name,
        capacity=capacity,
        utilization=guard,
        pairs=len(packed),
        free=len(free) / len(packed),
        found=len(free) / sum(_mean(pair) >= FREE for pair in pairs()),
        both_free=fmean(min(pair[2:]) >= FREE for pair in packed),
    )


def unseen_scores(fit: Fit = fit_shipped) -> dict[tuple[Hashable, Hashable], int]:
    """Each pair's sum of scores, by a tree from configurations and pairs without either network."""
    all_rows = {row["job"]: row for row in rows()}
    by_models: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs():
        first, second = sorted(job[0] for job in _jobs(pair))
        by_models.setdefault((first, second), []).append(pair)
    found = {}
    for models in combinations_with_replacement(sorted({job[0] for job in lucid_alone()}), 2):
        if models in by_models:
            tree = fit(rows(without=models))
            for one, other, *_ in by_models[models]:
                told = (CLASSES.index(tree.predict(all_rows[job])) for job in (one, other))
                found[one, other] = sum(told)
    return found


def _sum(scores: Scores, pair: Pair) -> int:
    return sum(scores[job] for job in _jobs(pair))


def _utilization(pair: Pair) -> float:
    return sum(float(lucid_alone()[job]["gpu_util"]) / 100 for job in _jobs(pair))


def _mean(pair: Pair) -> float:
    """Figures 2 and 5 of the paper measure a pair by the mean of its two speeds."""
    return (pair[2] + pair[3]) / 2


def _fits(pair: Pair) -> bool:
    return sum(float(lucid_alone()[job]["gmem"]) for job in _jobs(pair)) <= CARD_MIB
