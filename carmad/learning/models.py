"""Trained models as plain values, which predict in pure Python inside the core. Training is in
`carmad.learning`. Each model can be printed."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isnan
from typing import Literal

# -- a decision tree: predicts a class from indicators, and says which conditions led to it

LEAF = -1  # the feature of a node without children


@dataclass(frozen=True, slots=True)
class Node:
    """Values up to `threshold` go to the left child, greater ones to the right."""

    counts: tuple[int, ...]  # training rows at this node, per class
    feature: int = LEAF  # an index into the tree's features
    threshold: float = 0.0
    left: int = LEAF  # indices into the tree's nodes
    right: int = LEAF

    @property
    def impurity(self) -> float:
        """Gini impurity: the probability that two rows drawn at random differ in class."""
        rows = sum(self.counts)
        return 1 - sum((count / rows) ** 2 for count in self.counts)


@dataclass(frozen=True, slots=True)
class Tree:
    """`nodes[0]` is the root. The prediction is the most frequent class in a leaf."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    features: tuple[str, ...]
    classes: tuple[str, ...]
    nodes: tuple[Node, ...]
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["tree"] = "tree"

    def predict(self, values: Mapping[str, float]) -> str:
        """If a value is unknown, it goes the way of most training rows."""
        node = self.nodes[0]
        while node.feature != LEAF:
            left, right = self.nodes[node.left], self.nodes[node.right]
            value = values.get(self.features[node.feature])
            if value is None or isnan(value):
                node = left if sum(left.counts) >= sum(right.counts) else right
            else:
                node = left if value <= node.threshold else right
        return self._class(node)

    def text(self) -> str:
        """The tree, with one condition or class per line and children indented."""
        return "\n".join(self._lines(0, ""))

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Each feature's share of the Gini impurity that the tree removes, greatest first."""
        removed = dict.fromkeys(self.features, 0.0)
        for node in self.nodes:
            if node.feature != LEAF:
                parts = (node, self.nodes[node.left], self.nodes[node.right])
                whole, left, right = (sum(part.counts) * part.impurity for part in parts)
                removed[self.features[node.feature]] += whole - left - right
        total = sum(removed.values()) or 1.0
        shares = ((name, gain / total) for name, gain in removed.items())
        return tuple(sorted(shares, key=lambda share: -share[1]))

    def _class(self, leaf: Node) -> str:
        return self.classes[leaf.counts.index(max(leaf.counts))]

    def _lines(self, index: int, indent: str) -> Iterator[str]:
        node = self.nodes[index]
        if node.feature == LEAF:
            right = max(node.counts)
            yield f"{indent}{self._class(node)} ({right} of {sum(node.counts)})"
            return
        name = self.features[node.feature]
        for sign, child in (("≤", node.left), (">", node.right)):
            yield f"{indent}{name} {sign} {node.threshold:.3g}"
            yield from self._lines(child, indent + "  ")


# -- a sum of regression trees, as trained by gradient boosting. The conventions are XGBoost's: a
# value below the threshold goes left, others right, and a missing one where the node says. Values
# are compared as 32-bit floats, because the thresholds are 32-bit floats: otherwise a value equal
# to a threshold could end up on the wrong side


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the trees. Every field has an item per node; node 0 is the root."""

    feature: tuple[int, ...]  # index of the feature compared; LEAF for a leaf
    threshold: tuple[float, ...]
    left: tuple[int, ...]  # the node for values below the threshold
    right: tuple[int, ...]
    missing: tuple[int, ...]  # the node for a missing value
    value: tuple[float, ...]  # what a leaf adds; 0 for others
    gain: tuple[float, ...]  # by how much the split lowered the training loss

    def predict(self, given: Sequence[float | None]) -> float:
        """What the leaf adds that `given`, one item per feature, ends in."""
        node = 0
        while (feature := self.feature[node]) != LEAF:
            value = given[feature]
            if value is None:
                node = self.missing[node]
            else:
                below = value < self.threshold[node]
                node = self.left[node] if below else self.right[node]
        return self.value[node]


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
        given = self._inputs(values)
        total = self.base
        for stage in self.stages:
            total += stage.predict(given)
        return total

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

    def _inputs(self, values: Mapping[str, float]) -> tuple[float | None, ...]:
        known = (values.get(name) for name in self.features)
        return tuple(
            None if value is None or math.isnan(value) else array("f", (value,))[0]
            for value in known
        )


# -- a generalized additive model with pairwise terms (GA²M; Lucid paper, 3.5.2): its prediction is
# the sum of an intercept, one score per feature and one per pair of features

Values = Mapping[str, float | str]  # a feature that is absent or NaN counts as missing

MISSING = 0  # the index of the first bin


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of one feature, numbered from 1: numbers between the ascending `cuts` (a number on
    a cut belongs above it), texts by category. Bin 0 is for missing values, the last one for texts
    not seen in training."""

    feature: str
    cuts: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()  # not empty: the feature is a text

    def __len__(self) -> int:
        return 2 + (len(self.categories) or len(self.cuts) + 1)

    def index(self, values: Values) -> int:
        value = values.get(self.feature)
        if value is None or (isinstance(value, float) and isnan(value)):
            return MISSING
        if self.categories:
            name = str(value)
            return self.categories.index(name) + 1 if name in self.categories else len(self) - 1
        return len(self) - 1 if isinstance(value, str) else bisect_right(self.cuts, value) + 1

    def labels(self) -> tuple[str, ...]:
        return ("missing", *(self.categories or self._ranges()), "unseen")

    def _ranges(self) -> Iterator[str]:
        if not self.cuts:
            yield "any"
            return
        yield f"< {self.cuts[0]:.4g}"
        for low, high in pairwise(self.cuts):
            yield f"{low:.4g} to {high:.4g}"
        yield f"≥ {self.cuts[-1]:.4g}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What each bin of one feature adds to the prediction."""

    bins: Bins
    scores: tuple[float, ...]  # one per bin
    counts: tuple[float, ...]  # training rows per bin

    @property
    def name(self) -> str:
        return self.bins.feature

    @property
    def importance(self) -> float:
        """The mean absolute score over the training rows."""
        weighed = (abs(s) * n for s, n in zip(self.scores, self.counts, strict=True))
        return sum(weighed) / (sum(self.counts) or 1.0)

    def score(self, values: Values) -> float:
        return self.scores[self.bins.index(values)]

    def rows(self) -> tuple[tuple[str, float], ...]:
        """Label and score of every bin that has training rows."""
        listed = zip(self.bins.labels(), self.scores, self.counts, strict=True)
        return tuple((label, score) for label, score, count in listed if count)


@dataclass(frozen=True, slots=True)
class Pair:
    """What two features together add beyond what each adds alone."""

    bins: tuple[Bins, Bins]
    scores: tuple[tuple[float, ...], ...]  # by the first's bin, then by the second's
    importance: float  # the mean absolute score over the training rows

    @property
    def name(self) -> str:
        return " × ".join(bins.feature for bins in self.bins)

    def score(self, values: Values) -> float:
        first, second = self.bins
        return self.scores[first.index(values)][second.index(values)]


@dataclass(frozen=True, slots=True)
class Additive:
    """With the link `log`, the sum is the logarithm of the prediction."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    intercept: float
    shapes: tuple[Shape, ...]
    pairs: tuple[Pair, ...]
    link: Literal["identity", "log"]
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["additive"] = "additive"

    def predict(self, values: Values) -> float:
        total = self.intercept + sum(term.score(values) for term in self._terms())
        return exp(total) if self.link == "log" else total

    def contributions(self, values: Values) -> tuple[tuple[str, float], ...]:
        """What each term adds to the intercept (with the link `log`: to the logarithm), the
        greatest first."""
        parts = ((term.name, term.score(values)) for term in self._terms())
        return tuple(sorted(parts, key=lambda part: -abs(part[1])))

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Each term's mean absolute score over the training rows, greatest first."""
        parts = ((term.name, term.importance) for term in self._terms())
        return tuple(sorted(parts, key=lambda part: -part[1]))

    def _terms(self) -> tuple[Shape | Pair, ...]:
        return (*self.shapes, *self.pairs)


# -- durations by group


@dataclass(frozen=True, slots=True)
class Lookup:
    """A group is all runs of one user's job: see `carmad.core.jobs.recurrence`."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    seconds: Mapping[str, float]  # by group
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["lookup"] = "lookup"

    def predict(self, group: str) -> float:
        """0 for a group not seen in training."""
        return self.seconds.get(group, 0.0)

    def importance(self) -> tuple[tuple[str, float], ...]:
        """The group is the only feature."""
        return (("group", 1.0),) if self.seconds else ()


Model = Tree | Boosted | Additive | Lookup
