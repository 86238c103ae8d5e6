"""For how long jobs at a terminal have not used their GPUs: their owners may have gone home."""

from __future__ import annotations

from collections.abc import Iterable

from carmad.core.types import GpuSample, Job, JobId
from carmad.readable import duration

WARNING_S = 600.0  # before the end, or half of the limit if that is less


class Idleness:
    """Counts only time with readings: nobody is to blame for a driver that hangs."""

    def __init__(self) -> None:
        self._idle_s: dict[JobId, float] = {}
        self._at: float | None = None

    def add(
        self, at: float, seen: Iterable[tuple[GpuSample, tuple[Job, ...]]], gap_s: float
    ) -> None:
        """Readings, with the jobs on each GPU; the previous ones count for `gap_s` at most."""
        passed_s = 0.0 if self._at is None else min(at - self._at, gap_s)
        self._at = at
        idle_s: dict[JobId, float] = {}
        for sample, residents in seen:
            for job in residents:
                if not job.spec.interactive or job.spec.process:
                    continue
                here_s = 0.0
                if not _used(job, sample):
                    here_s = self._idle_s.get(job.id, 0.0) + passed_s
                idle_s[job.id] = min(here_s, idle_s.get(job.id, here_s))
        self._idle_s = idle_s

    def judge(self, job: Job, limit_s: float) -> tuple[bool, str]:
        """Whether it is to end, and what its owner is to know; "" for nothing."""
        idle_s = self._idle_s.get(job.id, 0.0)
        if not limit_s or idle_s < limit_s - min(WARNING_S, limit_s / 2):
            return False, ""
        limit = f"{duration(limit_s)} (interactive.idle_s)"
        if idle_s < limit_s:
            return False, f"does not use its GPUs: it will be ended once that lasts {limit}"
        return True, f"was ended because it had not used its GPUs for {limit}"


def _used(job: Job, sample: GpuSample) -> bool:
    """Whether one of its processes computed, as far as the source can tell."""
    own = [each for each in sample.processes if each.job == job.id]
    if all(each.sm_util is not None for each in own):
        return any(each.sm_util for each in own)
    return sample.activity is None or sample.activity > 0
