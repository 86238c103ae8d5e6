"""A generalized additive model with pairwise terms (GA²M; Lucid paper, 3.5.2): its prediction is
the sum of an intercept, one score per feature and one per pair of features."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isnan
from typing import Literal

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
