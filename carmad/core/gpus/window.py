"""The sliding window of a GPU's samples, and its collocation risk.

A sample describes the time since the previous one and is weighted by it: a monitor's samples count
equally, a simulator's, which come only when something changes, by how long they stood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Self

from carmad.config import Monitor, Risk
from carmad.core.gpus.gpu import GpuSample


@dataclass(frozen=True, slots=True)
class Score:
    """Risk per metric, 0–1; None where the GPU does not report it."""

    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    sm_source: str | None = None  # "sm_active", or "utilization" standing in for it
    sm_mean: float = 0.0  # for "least utilised" (LUG)
    samples: int = 0

    def risky(self, limits: Risk) -> bool:
        """The paper's test (3.3). If neither SMOCC nor DRAMA is available, SMACT alone decides."""
        if self.sm_active is None or self.sm_active < limits.sm_active:
            return False
        if self.sm_occupancy is None and self.dram_active is None:
            return True
        return (self.sm_occupancy or 0.0) >= limits.sm_occupancy or (
            self.dram_active or 0.0
        ) >= limits.dram_active


Level = tuple[float, float]  # a value, and for how many seconds it held


class Recent:
    """A snapshot of a window's samples. Their score is computed on demand: in a simulation, most
    are never needed."""

    __slots__ = ("_monitor", "_samples", "_score", "_weights")

    def __init__(
        self, samples: Iterable[tuple[GpuSample, float]], monitor: Monitor, weights: Risk
    ) -> None:
        self._samples = tuple(samples)  # each with the seconds that it covers
        self._monitor = monitor
        self._weights = weights
        self._score: Score | None = None

    @classmethod
    def with_score(cls, score: Score) -> Self:
        """Samples with this score, for tests."""
        recent = cls((), Monitor(), Risk())
        recent._score = score
        return recent

    def without_samples(self) -> Recent:
        """Without any samples."""
        return Recent((), self._monitor, self._weights)

    @property
    def score(self) -> Score:
        if self._score is None:
            self._score = self._compute_score()
        return self._score

    def activity(self, begin: float) -> float | None:
        """The mean activity from then on; None if nothing is known of it."""
        levels = self._levels("sm_active", begin) or self._levels("utilization", begin)
        return mean(levels) if levels else None

    def risky(self, limits: Risk) -> bool:
        """`score.risky(limits)`, without computing the score if it cannot be that high."""
        if self._score is None:
            weights = self._weights
            highest = max((sample.activity or 0.0 for sample, _ in self._samples), default=0.0)
            whole = weights.mean + weights.median + weights.p95 + weights.ema
            if highest * whole < limits.sm_active:
                return False
        return self.score.risky(limits)

    def _compute_score(self) -> Score:
        levels, sm_source = self._levels("sm_active"), "sm_active"
        if not levels:
            levels, sm_source = self._levels("utilization"), "utilization"
        sm = self._risk(levels)
        return Score(
            sm_active=sm,
            sm_occupancy=self._risk(self._levels("sm_occupancy")),
            dram_active=self._risk(self._levels("dram_active")),
            sm_source=None if sm is None else sm_source,
            sm_mean=mean(levels) if levels else 0.0,
            samples=len(self._samples),
        )

    def _levels(self, metric: str, begin: float = -inf) -> list[Level]:
        """Values with their durations; the oldest is cut off where the window begins, or at
        `begin`."""
        if not self._samples:
            return []
        begin = max(begin, self._samples[-1][0].at - self._monitor.window_s)
        return [
            (value, min(seconds, sample.at - begin))
            for sample, seconds in self._samples
            if sample.at > begin and (value := getattr(sample, metric)) is not None
        ]

    def _risk(self, levels: list[Level]) -> float | None:
        return risk(levels, self._monitor, self._weights) if levels else None


class Window:
    """The last `window_s` seconds of one GPU. Samples are added in time order."""

    def __init__(self, monitor: Monitor, weights: Risk) -> None:
        self._monitor = monitor
        self._weights = weights
        self._samples: deque[tuple[GpuSample, float]] = deque()
        self.since: float | None = None  # start of the readings without a gap

    @property
    def last(self) -> GpuSample | None:
        return self._samples[-1][0] if self._samples else None

    @property
    def readings(self) -> tuple[tuple[GpuSample, float], ...]:
        """The samples, in order, each with the seconds that it covers."""
        return tuple(self._samples)

    @property
    def recent(self) -> Recent:
        """A snapshot of the samples."""
        return Recent(self._samples, self._monitor, self._weights)

    @property
    def score(self) -> Score:
        return self.recent.score

    def add(self, sample: GpuSample) -> None:
        last, seconds = self.last, self._monitor.period_s
        if last is None or sample.at - last.at > self._monitor.stale_s:
            self.since = sample.at
        else:
            seconds = sample.at - last.at
        self._samples.append((sample, seconds))
        while self._samples[0][0].at <= sample.at - self._monitor.window_s:
            self._samples.popleft()


def risk(levels: Sequence[Level], monitor: Monitor, weights: Risk) -> float:
    """The weighted sum of mean, median, 95th percentile and EMA (CARMA paper, 3.3).

    `levels` are in time order, at least one.
    """
    first = levels[0][0]
    if all(value == first for value, _ in levels):
        return first * (weights.mean + weights.median + weights.p95 + weights.ema)
    ordered = sorted(levels, key=itemgetter(0))
    return (
        weights.mean * mean(levels)
        + weights.median * percentile(ordered, 0.50, monitor.period_s)
        + weights.p95 * percentile(ordered, 0.95, monitor.period_s)
        + weights.ema * ema(levels, monitor)
    )


def mean(levels: Sequence[Level]) -> float:
    total = weighted = 0.0
    for value, seconds in levels:
        total += seconds
        weighted += value * seconds
    return weighted / total if total else levels[-1][0]  # all at one time: the last


def percentile(ordered: Sequence[Level], q: float, period_s: float) -> float:
    """The value below which a GPU was for a share `q` (0–1) of the time.

    For samples of one period each, it is the linear interpolation between the two nearest; longer
    samples count as that many. `ordered` is sorted by value.
    """
    total = sum([seconds for _, seconds in ordered])
    at = q * max(0.0, total - period_s) + min(period_s, total) / 2
    before, value_before = 0.0, ordered[0][0]
    begin = 0.0
    for value, seconds in ordered:
        half = (period_s if period_s < seconds else seconds) / 2
        if at < begin + half:
            share = (at - before) / (begin + half - before)
            return value_before + share * (value - value_before)
        begin += seconds
        before, value_before = begin - half, value
        if at <= before:
            return value
    return value_before


def ema(levels: Sequence[Level], monitor: Monitor) -> float:
    """Exponential moving average, starting at the first value: α = 2 / (n + 1) per period, where n
    is the number of periods in the window."""
    alpha = 2 / (max(1, round(monitor.window_s / monitor.period_s)) + 1)
    average = levels[0][0]
    for value, seconds in islice(levels, 1, None):
        if value != average:
            average += (1 - (1 - alpha) ** (seconds / monitor.period_s)) * (value - average)
    return average
