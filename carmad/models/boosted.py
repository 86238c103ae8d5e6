"""A sum of regression trees, as trained by gradient boosting: evaluated here, not trained.

The conventions are XGBoost's: a value below the threshold goes left, others right, and a
missing one where the node says. Values are compared as 32-bit floats, because the thresholds are
32-bit floats: otherwise a value equal to a threshold could end up on the wrong side.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

LEAF = -1


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the trees. Every field has an item per node; node 0 is the root."""

    feature: tuple[int, ...]  # index of the feature compared; LEAF for a leaf
    threshold: tuple[float, ...]
    left: tuple[int, ...]  # the node for values below the threshold
    right: tuple[int, ...]
    missing: tuple[int, ...]  # the node for a missing value
    value: tuple[float, ...]  # of a leaf what it adds; else the mean over the training rows below
    gain: tuple[float, ...]  # by how much the split lowered the training loss

    def path(self, given: tuple[float | None, ...]) -> Iterator[int]:
        """The nodes from the root to the leaf that `given`, one item per feature, ends in."""
        node = 0
        yield node
        while (feature := self.feature[node]) != LEAF:
            value = given[feature]
            if value is None:
                node = self.missing[node]
            else:
                below = value < self.threshold[node]
                node = self.left[node] if below else self.right[node]
            yield node


@dataclass(frozen=True, slots=True)
class Boosted:
    """The prediction is `base` plus the leaf value of each stage (tree)."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    features: tuple[str, ...]
    base: float
    stages: tuple[Stage, ...]
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["boosted"] = "boosted"

    def predict(self, values: Mapping[str, float]) -> float:
        """A feature that is absent from `values`, or NaN, is missing."""
        given = self._given(values)
        total = self.base
        for stage in self.stages:
            *_, leaf = stage.path(given)
            total += stage.value[leaf]
        return total

    @property
    def mean(self) -> float:
        """Its mean prediction over the training rows."""
        return self.base + sum(stage.value[0] for stage in self.stages)

    def contributions(self, values: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        """What each feature contributed to the prediction; with `mean` they add up to it.

        A split contributes the change in the mean of the training rows that reach it (Saabas's
        method). Features that no split on the path uses are left out.
        """
        given = self._given(values)
        parts: dict[int, float] = {}
        for stage in self.stages:
            above = 0
            for node in stage.path(given):
                if node:
                    feature = stage.feature[above]
                    moved = stage.value[node] - stage.value[above]
                    parts[feature] = parts.get(feature, 0.0) + moved
                above = node
        return tuple((self.features[feature], part) for feature, part in parts.items())

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Each feature's share of the total gain, largest first; the shares add up to 1.

        Empty if no tree has a split."""
        gains = [0.0] * len(self.features)
        for stage in self.stages:
            for feature, gain in zip(stage.feature, stage.gain, strict=True):
                if feature != LEAF:
                    gains[feature] += gain
        total = sum(gains)
        if not total:
            return ()
        shares = ((name, gain / total) for name, gain in zip(self.features, gains, strict=True))
        return tuple(sorted(shares, key=lambda share: -share[1]))

    def _given(self, values: Mapping[str, float]) -> tuple[float | None, ...]:
        known = (values.get(name) for name in self.features)
        return tuple(
            None if value is None or math.isnan(value) else array("f", (value,))[0]
            for value in known
        )
