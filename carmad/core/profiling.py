"""Profiles jobs from samples of GPUs that they have to themselves, without touching the jobs.

What a sample says holds for the time since the one before it. Several GPUs of a job count together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carmad.core.types import GpuSample, Indicator, Job, JobId, Profile


@dataclass(slots=True)
class _Sums:
    """Of one indicator, weighted by time."""

    seconds: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # of the distances from the mean

    def add(self, value: float, seconds: float) -> None:
        self.seconds += seconds
        off = value - self.mean
        self.mean += off * seconds / self.seconds
        self.squares += seconds * off * (value - self.mean)


@dataclass(slots=True)
class _Watched:
    gpu_seconds: float = 0.0
    indicators: dict[str, _Sums] = field(default_factory=dict)


class UsageProfiler:
    """Measures jobs until they are forgotten; starts from zero after a restart."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Watched] = {}

    def add(
        self, residents: tuple[Job, ...], before: GpuSample | None, sample: GpuSample, gap_s: float
    ) -> None:
        """Take in a reading of a GPU that follows `before`; no more than `gap_s` after it."""
        if len(residents) != 1 or before is None or residents[0].profiled:
            return
        job, seconds = residents[0], sample.at - before.at
        if not 0 < seconds <= gap_s or not _trained_since(before.at, job, sample):
            return
        watched = self._jobs.setdefault(job.id, _Watched())
        watched.gpu_seconds += seconds
        for name, value in sample.indicators():
            watched.indicators.setdefault(name, _Sums()).add(value, seconds)

    def watched_s(self, job: Job) -> float:
        watched = self._jobs.get(job.id)
        return watched.gpu_seconds / len(job.gpus) if watched and job.gpus else 0.0

    def profile(self, job: Job, peak_mib: int) -> Profile:
        """What is known of it by now."""
        seconds = self.watched_s(job)
        watched = self._jobs.get(job.id, _Watched())
        indicators = (
            Indicator(name, sums.mean, sums.squares / sums.seconds)
            for name, sums in sorted(watched.indicators.items())
        )
        return Profile(seconds, peak_mib, tuple(indicators))

    def forget(self, job: JobId) -> None:
        self._jobs.pop(job, None)


def _trained_since(at: float, job: Job, sample: GpuSample) -> bool:
    """Was its first kernel seen by then? What it did before is no training."""
    return any(gpu == sample.gpu and kernel_at <= at for gpu, kernel_at in job.kernels)
