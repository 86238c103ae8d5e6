"""What is left of a job, how busy it keeps a GPU, and how much memory it takes: as declared,
predicted, estimated or measured, and otherwise a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from carmad.plugin import GpuId, GpuView, Job, View
from policies import views

FIRST_S = 3600.0  # a job of unknown duration has as much left as it has run, and this at least, …
CLASS = 4.0  # … in classes that are so many times as long as the one before
LATELY = 256  # past runs whose memory a stranger's is guessed by
ACTIVITY = 0.6  # of a job that has never been measured
NAMES = ("sm_active", "gpu_utilization")  # of what a profile says of activity


def left_s(job: Job, now: float) -> float:
    """Alone. A job that has run for long will mostly run for long."""
    if job.expected_s is not None or job.stop is not None:
        return views.remaining_s(job, now, math.inf)
    steps = math.log(max(job.attained_s(now), FIRST_S) / FIRST_S, CLASS)
    return FIRST_S * CLASS ** math.floor(steps)


class Sizes:
    """Of the jobs in a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        settled = (gpu for gpu in view.gpus if gpu.residents and gpu.settling is None)
        self._measured: Mapping[GpuId, GpuView] = {gpu.id: gpu for gpu in settled}
        past = islice(reversed(tuple(view.history.runs)), LATELY)
        peaks = [run.profile.peak_mib for run in past if run.profile]
        peaks += [job.usage.peak_mib for job in view.running]
        self._largest_mib = max(peaks, default=0)

    def of(self, job: Job) -> tuple[float, float, float]:
        """The memory that it needs, what is left of it, and its activity."""
        return self.need_mib(job), self.left_s(job), self.activity(job)

    def left_s(self, job: Job) -> float:
        return left_s(job, self._view.now)

    def activity(self, job: Job) -> float:
        """On each of its GPUs, when it is alone there."""
        if job.profile is not None:
            means = map(job.profile.mean, NAMES)
            if (known := next((mean for mean in means if mean is not None), None)) is not None:
                return known
        there = self._measured.get(job.gpus[0]) if job.gpus else None
        return there.score.sm_mean if there and len(there.residents) == 1 else ACTIVITY

    def load(self, gpu: GpuView) -> float:
        """The activity there: as measured, if these jobs are those that were."""
        there = self._measured.get(gpu.id)
        if there is not None and there.residents is gpu.residents:
            return there.score.sm_mean
        return sum(map(self.activity, gpu.residents))

    def need_mib(self, job: Job) -> float:
        """A stranger may need as much as the largest job that has been seen here."""
        return views.need_mib(job) or self._largest_mib or math.inf
