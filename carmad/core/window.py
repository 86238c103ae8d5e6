"""The sliding window of one GPU's samples, and the collocation risk it amounts to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from carmad.config import Monitor, Risk
from carmad.core.types import GpuSample


@dataclass(frozen=True, slots=True)
class Score:
    """Risk per metric, 0–1; None where the GPU does not tell."""

    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    sm_source: str | None = None  # "sm_active", or "utilization" standing in for it
    sm_mean: float = 0.0  # what "least utilised" goes by (LUG)
    samples: int = 0

    def risky(self, limits: Risk) -> bool:
        """The paper's test (3.3). With neither SMOCC nor DRAMA to be had, SMACT decides alone."""
        if self.sm_active is None or self.sm_active < limits.sm_active:
            return False
        if self.sm_occupancy is None and self.dram_active is None:
            return True
        return (self.sm_occupancy or 0.0) >= limits.sm_occupancy or (
            self.dram_active or 0.0
        ) >= limits.dram_active


class Window:
    """The last `window_s` seconds of one GPU. Fed in time order."""

    def __init__(self, monitor: Monitor, weights: Risk) -> None:
        self._monitor = monitor
        self._weights = weights
        self._samples: deque[GpuSample] = deque()
        self.since: float | None = None  # when this GPU was first watched without a gap
        self.score = Score()

    @property
    def last(self) -> GpuSample | None:
        return self._samples[-1] if self._samples else None

    def add(self, sample: GpuSample) -> None:
        last = self.last
        if last is None or sample.at - last.at > self._monitor.stale_s:
            self.since = sample.at
        self._samples.append(sample)
        while self._samples[0].at <= sample.at - self._monitor.window_s:
            self._samples.popleft()
        self.score = self._scored()

    def _scored(self) -> Score:
        values, sm_source = self._values("sm_active"), "sm_active"
        if not values:
            values, sm_source = self._values("utilization"), "utilization"
        sm = self._risk(values)
        return Score(
            sm_active=sm,
            sm_occupancy=self._risk(self._values("sm_occupancy")),
            dram_active=self._risk(self._values("dram_active")),
            sm_source=None if sm is None else sm_source,
            sm_mean=sum(values) / len(values) if values else 0.0,
            samples=len(self._samples),
        )

    def _values(self, metric: str) -> list[float]:
        return [value for sample in self._samples if (value := getattr(sample, metric)) is not None]

    def _risk(self, values: list[float]) -> float | None:
        if not values:
            return None
        span = max(1, round(self._monitor.window_s / self._monitor.period_s))
        return risk(values, span, self._weights)


def risk(values: Sequence[float], span: int, weights: Risk) -> float:
    """The weighted sum of mean, median, 95th percentile and EMA (CARMA paper, 3.3).

    `values` are in time order, at least one; `span` is the window's length in samples.
    """
    ordered = sorted(values)
    return (
        weights.mean * sum(values) / len(values)
        + weights.median * percentile(ordered, 0.50)
        + weights.p95 * percentile(ordered, 0.95)
        + weights.ema * ema(values, span)
    )


def percentile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between the two nearest of `ordered` values; `q` is 0–1."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def ema(values: Sequence[float], span: int) -> float:
    """Exponential moving average with α = 2 / (span + 1), begun at the first value."""
    alpha = 2 / (span + 1)
    average = values[0]
    for value in islice(values, 1, None):
        average += alpha * (value - average)
    return average
