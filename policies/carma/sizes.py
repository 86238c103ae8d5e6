"""What is left of a job, how busy it keeps a GPU, and how much memory it takes: as declared,
predicted, estimated or measured, and otherwise a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping

from carmad.plugin import ASSUMED_ACTIVITY, GpuId, GpuView, Job, View, find_load, predicted_s
from policies import views

FIRST_S = 3600.0  # a job of unknown duration has as much left as it has run, and this at least, …
CLASS = 4.0  # … in classes that are so many times as long as the one before


def left_s(job: Job, now: float) -> float:
    """Alone. A job that has run for long will mostly run for long."""
    if job.leaves or job.expected_s is not None:
        return predicted_s(job, now)
    steps = math.log(max(job.attained_s(now), FIRST_S) / FIRST_S, CLASS)
    return FIRST_S * CLASS ** math.floor(steps)


class Sizes:
    """Of the jobs in a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        shows = (gpu for gpu in view.gpus if gpu.residents and not (gpu.settling and gpu.early))
        self._measured: Mapping[GpuId, GpuView] = {gpu.id: gpu for gpu in shows}

    def of(self, job: Job) -> tuple[float, float, float]:
        """The memory that it needs (0: unknown), what is left of it, and its activity."""
        return views.need_mib(job), self.left_s(job), self.activity(job)

    def left_s(self, job: Job) -> float:
        return left_s(job, self._view.now)

    def activity(self, job: Job) -> float:
        """On each of its GPUs, when it is alone there."""
        if (known := views.activity(job)) is not None:
            return known
        there = self._measured.get(job.gpus[0]) if job.gpus else None
        return self._shown(there) if there and len(there.residents) == 1 else ASSUMED_ACTIVITY

    def load(self, gpu: GpuView) -> float:
        """The activity there: as measured, if these jobs are those that were."""
        there = self._measured.get(gpu.id)
        if there is not None and there.residents is gpu.residents:
            return self._shown(there)
        return sum(map(self.activity, gpu.residents))

    def _shown(self, gpu: GpuView) -> float:
        load = find_load(gpu, self._view.settings.monitor) if gpu.settling else None
        return gpu.score.sm_mean if load is None else load
