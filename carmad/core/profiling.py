"""Profiles jobs from samples of GPUs that they have to themselves, without touching the jobs.

A sample describes the time since the previous one. All GPUs of a job count together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carmad.core.types import GpuSample, Indicator, Job, JobId, Profile


@dataclass(slots=True)
class _Sums:
    """Time-weighted sums of one indicator."""

    seconds: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

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
        """Add a reading of a GPU; it counts only if it follows `before` by at most `gap_s`."""
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
        """The job's profile so far."""
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
    """Whether its first kernel on this GPU was seen by then: before that, it did not train."""
    return any(gpu == sample.gpu and kernel_at <= at for gpu, kernel_at in job.kernels)
