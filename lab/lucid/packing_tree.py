"""Packing Analyze Model (Lucid paper, 3.5.1): how much a job slows down its neighbours.

A row of the table is a configuration of a training job that was measured alone and while sharing:
`gpu_utilization`, `memory_utilization` and `memory_share` (its peak over the card's memory), all
0–1, `amp` (1 where it trains in mixed precision), `label` (one of `CLASSES`) and `model` (the
neural network, so that cross-validation judges on networks it has not seen).

Memory counts as a share of the card, like the two utilisations: on a larger card all three shrink,
and so does the interference.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold
from sklearn.tree import DecisionTreeClassifier

from carmad.learning.models import Node, Tree

CLASSES = ("tiny", "medium", "jumbo")  # sharing scores 0, 1, 2
TINY, MEDIUM = 0.95, 0.85  # normalised speeds; below both is Jumbo
FEATURES = ("gpu_utilization", "memory_utilization", "memory_share", "amp")
FOLDS = 10
ABOUT = "how much a job slows others on its GPU; from figures of 0–1"

Row = Mapping[str, Any]
Pair = tuple[Hashable, Hashable, float, float]  # two jobs, and the speed of each over that alone


def average_speeds(pairs: Iterable[Pair]) -> dict[Hashable, float]:
    """The normalised speed of each job's neighbours, averaged over all of its pairs.

    This follows the paper: a job is labelled by its "influence on others". Its artifact averages
    the job's own speeds (simulation/analyzer), and trains on labels set by hand.
    `packing` compares them.
    """
    speeds: dict[Hashable, list[float]] = {}
    for one, other, speed_one, speed_other in pairs:
        speeds.setdefault(one, []).append(speed_other)
        speeds.setdefault(other, []).append(speed_one)
    return {job: fmean(found) for job, found in speeds.items()}


def label(speed: float, tiny: float = TINY, medium: float = MEDIUM) -> str:
    if speed >= tiny:
        return CLASSES[0]
    return CLASSES[1] if speed >= medium else CLASSES[2]


def train(rows: Sequence[Row], source: str, at: float) -> Tree:
    """The pruning is chosen on networks outside the training part, and the errors are measured on
    networks that had no part in either. Raises ValueError for fewer than three networks."""
    right = 0
    for seen, unseen in _folds(rows):
        tree = fit([rows[n] for n in seen], source, at)
        right += sum(tree.predict(rows[n]) == rows[n]["label"] for n in unseen)
    return fit(rows, source, at, errors=(("accuracy", right / len(rows)),))


def fit(
    rows: Sequence[Row],
    source: str,
    at: float,
    errors: tuple[tuple[str, float], ...] = (),
    features: tuple[str, ...] = FEATURES,
    pruning: float | None = None,
) -> Tree:
    """The tree alone, without its errors. `pruning`: α; None: chosen by cross-validation."""
    values, labels = _arrays(rows, features)
    alpha = _pruning(rows, features) if pruning is None else pruning
    grown = _grown(values, labels, alpha)
    return converted(grown, source, len(rows), at, errors, features)


def _pruning(rows: Sequence[Row], features: tuple[str, ...]) -> float:
    """α for minimal cost-complexity pruning: of those that give different trees, the most accurate
    in cross-validation; among equals the greatest, for the smallest tree."""
    values, labels = _arrays(rows, features)
    path = DecisionTreeClassifier(random_state=0).cost_complexity_pruning_path(values, labels)
    steps = sorted({0.0, *np.maximum(path.ccp_alphas, 0.0).tolist()})
    between = [(low * high) ** 0.5 for low, high in pairwise(steps)]  # Breiman et al., 1984
    folds = _folds(rows)

    def right(alpha: float) -> int:
        told = (_grown(values[seen], labels[seen], alpha).predict(values[n]) for seen, n in folds)
        return sum(int((each == labels[n]).sum()) for each, (_, n) in zip(told, folds, strict=True))

    return max(between, key=lambda alpha: (right(alpha), alpha), default=0.0)


def _folds(rows: Sequence[Row]) -> list[tuple[Any, Any]]:
    """Each network is in one fold only; with few networks, each is a fold of its own."""
    groups = [row["model"] for row in rows]
    folds = GroupKFold(n_splits=min(FOLDS, len(set(groups))))
    return list(folds.split(groups, groups=groups))


def _arrays(rows: Sequence[Row], features: tuple[str, ...]) -> tuple[Any, Any]:
    values = np.array([[float(row[name]) for name in features] for row in rows])
    return values, np.array([CLASSES.index(row["label"]) for row in rows])


def _grown(values: Any, labels: Any, alpha: float) -> Any:
    return DecisionTreeClassifier(random_state=0, ccp_alpha=alpha).fit(values, labels)


def converted(
    grown: Any,
    source: str,
    rows: int,
    at: float,
    errors: tuple[tuple[str, float], ...],
    features: tuple[str, ...] = FEATURES,
) -> Tree:
    """A plain value with the same predictions as scikit-learn's classifier."""
    inner, known = grown.tree_, grown.classes_.tolist()
    nodes = []
    for n in range(inner.node_count):
        shares = dict(zip(known, inner.value[n][0].tolist(), strict=True))
        here = int(inner.n_node_samples[n])
        counts = tuple(round(shares.get(c, 0.0) * here) for c in range(len(CLASSES)))
        left, right = int(inner.children_left[n]), int(inner.children_right[n])
        if left < 0:
            nodes.append(Node(counts))
        else:
            threshold = float(inner.threshold[n])
            nodes.append(Node(counts, int(inner.feature[n]), threshold, left, right))
    return Tree(ABOUT, source, features, CLASSES, tuple(nodes), rows, at, errors)
