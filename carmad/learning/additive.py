"""Trains a GA²M as an explainable boosting machine (interpret), converted to a plain value."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from interpret.glassbox import ExplainableBoostingRegressor

from carmad.models import Additive, Pair, Shape
from carmad.models.additive import Bins, Values

BINS = 64  # per numeric feature: enough to show its shape, few enough to read
ROUNDS = 1000  # over all features; most bags stop earlier, when nothing improves any more
BAGS = 8  # the model is the mean of so many machines
SEED = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """What a trained model says about itself."""

    about: str
    source: str
    trained_at: float
    errors: tuple[tuple[str, float], ...] = ()


def fit(
    table: Sequence[Values],
    targets: Sequence[float],
    origin: Origin,
    *,
    link: Literal["identity", "log"] = "identity",
    interactions: int = 10,
    alone: str | None = None,
) -> Additive:
    """`table` is in order of time, with one row per target and at least 2·BAGS rows. With the link
    `log`, targets must be positive, and errors count by ratio. The feature `alone` is in no pair:
    its shape is its whole effect.

    Features that are missing in every row are left out. Ten pairs is what Lucid's artifact uses
    for throughput (simulation/predictor).
    """
    names = tuple(dict.fromkeys(name for row in table for name in row))
    types = ["nominal" if _is_text(name, table) else "continuous" for name in names]
    machine = ExplainableBoostingRegressor(
        feature_names=names,
        feature_types=types,
        interactions=min(interactions, len(names) * (len(names) - 1) // 2),
        exclude=[pair for pair in combinations(names, 2) if alone in pair],
        max_bins=BINS,
        max_rounds=ROUNDS,
        outer_bags=BAGS,
        learning_rate=0.1,  # the artifact's; interpret's own takes longer and is no better here
        random_state=SEED,
        n_jobs=1,  # the CPUs are for the jobs
    )
    rows = np.array([[row.get(name) for name in names] for row in table], dtype=object)
    values = np.asarray(targets, dtype=float)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Missing values detected")
        machine.fit(rows, np.log(values) if link == "log" else values, bags=_bags(len(table)))
    return converted(machine, origin, link, len(table))


def converted(
    machine: Any, origin: Origin, link: Literal["identity", "log"], rows: int
) -> Additive:
    """A plain value with the same predictions as interpret's regressor."""
    shapes, pairs = [], []
    terms = zip(machine.term_features_, machine.term_scores_, machine.bin_weights_, strict=True)
    for features, scores, weights in terms:
        if len(features) == 1:
            bins = _bins(machine, features[0], order=1)
            shapes.append(Shape(bins, tuple(scores.tolist()), tuple(weights.tolist())))
        else:
            first, second = (_bins(machine, feature, order=2) for feature in features)
            matrix = tuple(tuple(row) for row in scores.tolist())
            importance = float(np.average(np.abs(scores), weights=weights))
            pairs.append(Pair((first, second), matrix, importance))
    return Additive(
        about=origin.about,
        source=origin.source,
        intercept=float(machine.intercept_),
        shapes=tuple(shapes),
        pairs=tuple(pairs),
        link=link,
        rows=rows,
        trained_at=origin.trained_at,
        errors=origin.errors,
    )


def _bags(rows: int) -> Any:
    """For each bag, its training rows (1) and its validation rows (-1), which are contiguous.

    By default, interpret would scatter the validation rows. But jobs come in bursts with similar
    features, so that with similar rows on both sides, memorising would look like learning.
    """
    bags = np.ones((rows, BAGS), dtype=np.int8)
    for n, stretch in enumerate(np.array_split(np.arange(rows), BAGS)):
        bags[stretch, n] = -1
    return bags


def _bins(machine: Any, feature: int, order: int) -> Bins:
    """Pairs may have coarser bins than shapes: interpret keeps both, and the last ones apply to
    all higher orders."""
    kept = machine.bins_[feature]
    found = kept[min(order, len(kept)) - 1]
    name = str(machine.feature_names_in_[feature])
    if isinstance(found, dict):
        return Bins(name, categories=tuple(sorted(found, key=found.__getitem__)))
    return Bins(name, cuts=tuple(found.tolist()))


def _is_text(name: str, table: Sequence[Mapping[str, object]]) -> bool:
    return any(isinstance(row.get(name), str) for row in table)
