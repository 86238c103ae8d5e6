"""Trains the model of the interference ratio xi: how much one job slows another (Castor, 6).

The features are those of `carmad.core.gpus.slowdown.beside`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from random import Random
from statistics import fmean, median, median_low
from typing import Any

import numpy as np
import xgboost
from scipy.spatial import distance

from carmad.errors import CarmaError
from carmad.learning.models import LEAF, Boosted, Stage

ABOUT = "interference ratio: a job's step time beside another over that alone, at least 1"
ERROR = "MAE"  # of the ratio
ROUNDS = 100
# Compact, as the paper asks. Eight settings tried on Lucid's pairs were about equally good.
PARAMETERS = {"max_depth": 4, "eta": 0.1, "nthread": 1}
WORTHWHILE = 0.9  # a model's error, of that of the median of all: less may be chance
NEAR = 0.3  # the distance of two pairs' features up to which their ratios should agree


@dataclass(frozen=True, slots=True)
class Beside:
    """One job's slowdown next to another."""

    values: Mapping[str, float]
    ratio: float  # xi as measured; below 1, which is noise, it counts as 1
    pair: str  # the same in both jobs' rows, which are held out together
    user: str = ""  # who reported it

    @property
    def target(self) -> float:
        return max(1.0, self.ratio)


def train(rows: Sequence[Beside], source: str = "") -> Boosted:
    """Gradient-boosted regression trees over all features that any row has."""
    features = tuple(sorted({name for row in rows for name in row.values}))
    whole = np.array([[row.values.get(name, nan) for name in features] for row in rows])
    gaps = list(_gaps(features))
    matrix = xgboost.DMatrix(
        np.vstack([whole, *(np.where(gap, nan, whole) for gap in gaps)]),
        label=np.tile([row.target for row in rows], 1 + len(gaps)),
        weight=np.repeat([1.0, *[1 / len(gaps)] * len(gaps)], len(rows)),
    )
    base, stages = convert(xgboost.train(PARAMETERS, matrix, ROUNDS))
    return Boosted(ABOUT, source, features, base, stages, rows=len(rows), trained_at=0.0)


def train_and_judge(rows: Sequence[Beside], source: str, now: float) -> Boosted:
    """Train on the `consensus` of users. The error is that of a model without a fifth of the
    pairs, on that fifth. Raises CarmaError if it is hardly better there than the overall median."""
    pairs = sorted({row.pair for row in rows})
    unseen = set(Random(0).sample(pairs, max(1, len(pairs) // 5)))
    # Apart: agreement across the two would tell the model of what it is judged by.
    seen, tested = (
        consensus([row for row in rows if (row.pair in unseen) is held]) for held in (False, True)
    )
    error = mae(train(seen), tested) if seen else inf
    middle = median(row.target for row in seen or rows)
    constant = fmean(abs(middle - row.target) for row in tested)
    if error >= WORTHWHILE * constant:
        raise CarmaError(
            f"on pairs that it has not seen, a model is hardly better ({error:.3g}) than the median"
            f" ({constant:.3g})"
        )
    return replace(train(consensus(rows), source), trained_at=now, errors=((ERROR, error),))


def consensus(rows: Sequence[Beside]) -> list[Beside]:
    """Each row with the median over users of what they report of a pair like it: each with the
    ratio of their nearest, if it is within `NEAR`. So a user who reports nonsense is outvoted
    wherever two others report."""
    # Shares only: traffic, in MiB/s, would keep pairs apart that are alike.
    names = sorted({name for row in rows for name in row.values if "_mib_s." not in name})
    points = np.array([[row.values.get(name, -1.0) for name in names] for row in rows])
    votes: list[list[float]] = [[] for _ in rows]
    for user in {row.user for row in rows}:
        its = [n for n, row in enumerate(rows) if row.user == user]
        apart = distance.cdist(points, points[its])
        for n, nearest in enumerate(apart.argmin(axis=1)):
            if apart[n, nearest] <= NEAR:
                votes[n].append(rows[its[nearest]].ratio)
    return [replace(row, ratio=median_low(vote)) for row, vote in zip(rows, votes, strict=True)]


def mae(model: Boosted, rows: Sequence[Beside]) -> float:
    return fmean(abs(model.predict(row.values) - row.target) for row in rows)


def convert(booster: xgboost.Booster) -> tuple[float, tuple[Stage, ...]]:
    """Base and stages for `Boosted`, from a regression with squared error."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    base = float(learner["learner_model_param"]["base_score"].strip("[]"))
    return base, tuple(_stage(tree) for tree in trees)


def _gaps(features: Sequence[str]) -> Iterator[list[bool]]:
    """What may be missing in use: an indicator that the source lacks, or a whole profile.

    Training repeats the rows with each of these gaps, which together weigh as much as the rows
    themselves. Otherwise XGBoost would see no missing values, and their direction be arbitrary.
    """
    for place in (1, 0):
        for part in sorted({name.split(".")[place] for name in features}):
            yield [name.split(".")[place] == part for name in features]


def _stage(tree: Mapping[str, Any]) -> Stage:
    left, right = tree["left_children"], tree["right_children"]
    nodes = range(len(left))
    # JSON has the shortest decimals that identify a 32-bit float, not its exact value.
    condition = [float(np.float32(value)) for value in tree["split_conditions"]]
    leaf = [left[node] == LEAF for node in nodes]
    return Stage(
        feature=tuple(LEAF if leaf[n] else tree["split_indices"][n] for n in nodes),
        threshold=tuple(0.0 if leaf[n] else condition[n] for n in nodes),
        left=tuple(left),
        right=tuple(right),
        missing=tuple(left[n] if tree["default_left"][n] else right[n] for n in nodes),
        # A 32-bit float has no more digits.
        value=tuple(float(f"{condition[n]:.7g}") if leaf[n] else 0.0 for n in nodes),
        gain=tuple(tree["loss_changes"]),
    )
