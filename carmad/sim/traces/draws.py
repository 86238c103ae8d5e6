"""Draws that keep a distribution's statistics even in a small sample."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from statistics import NormalDist

Points = tuple[tuple[float, float], ...]  # of a quantile function: a share, 0–1, and its value


def strata(dice: Random, count: int) -> list[float]:
    """One number from each of `count` equal parts of 0–1, in random order."""
    shares = [(place + dice.random()) / count for place in range(count)]
    dice.shuffle(shares)
    return shares


def quantile(points: Points, share: float) -> float:
    """Interpolated linearly between `points`, which begin at 0 and end at 1."""
    for (low, smaller), (high, larger) in pairwise(points):
        if share <= high:
            return smaller + (larger - smaller) * (share - low) / (high - low)
    raise ValueError(f"no share: {share}")


def log_normal(shares: Iterable[float], sigma: float) -> list[float]:
    """The quantiles of the log-normal distribution whose median is 1."""
    normal = NormalDist(sigma=sigma)
    return [math.exp(normal.inv_cdf(share)) for share in shares]


def scaled(values: Iterable[float], mean: float) -> list[float]:
    values = list(values)
    factor = mean * len(values) / sum(values)
    return [value * factor for value in values]
