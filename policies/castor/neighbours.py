"""Running jobs that a new one might share GPUs with, and remaining durations."""

from __future__ import annotations

import math
from typing import NamedTuple

from carmad.plugin import GpuView, Job, View
from policies.castor.pairing import accumulations
from policies.castor.progress import Worked
from policies.castor.steps import StepModel

# A job that has outlived its prediction is assumed to have this share of its run time left: if it
# counted as about to end, no job would ever join it.
OVERRUN = 0.1


class Neighbour(NamedTuple):
    """A running job, and the GPUs that it has to itself, largest memory first."""

    job: Job
    left_s: float
    gpus: tuple[GpuView, ...]


def neighbours(view: View, worked: Worked) -> tuple[Neighbour, ...]:
    """Running jobs whose slowdown can be predicted, in the order of their first GPUs."""
    alone: dict[int, list[GpuView]] = {}
    for gpu in view.gpus:
        if len(gpu.residents) == 1 and not unknown(gpu.residents[0]):
            alone.setdefault(gpu.residents[0].id, []).append(gpu)
    found = []
    for gpus in alone.values():
        job = gpus[0].residents[0]
        gpus.sort(key=lambda gpu: -gpu.free_mib)
        worked_s = worked.get(job.id, job.served_s)
        found.append(Neighbour(job, left_s(job, worked_s), tuple(gpus)))
    return tuple(found)


def unknown(job: Job) -> str:
    """The reason code of what must be known before the job may share GPUs; empty if nothing is
    missing."""
    profile = job.profile
    if profile is None or not profile.seconds or not profile.peak_mib:
        return "unprofiled"
    return "unpredicted" if job.expected_s is None else ""


def steps(job: Job) -> StepModel:
    """The step model from reports by runs of the job (`carma report-step`). Without reports, a step
    counts as one second: only the ratio of durations matters."""
    return StepModel.fit(job.steps, batch(job)) or StepModel.assume(1.0, batch(job))


def left_s(job: Job, worked_s: float) -> float:
    """Its remaining run time alone after `worked_s` alone, given the slowdown by its accumulation,
    which stays; infinite without a prediction, 0 once it was told to stop."""
    if job.expected_s is None:
        return math.inf
    if job.stop is not None:
        return 0.0
    whole_s = job.expected_s * steps(job).slowdown(batch(job), job.accumulation)
    return whole_s - worked_s if worked_s < whole_s else OVERRUN * worked_s


def batch(job: Job) -> int:
    """The batch size that may be split, if the owner declared one; otherwise 1."""
    return job.spec.batch_size or 1


def most_passes(job: Job) -> int:
    *_, most = accumulations(batch(job))
    return most
