"""Running jobs that a new one might share GPUs with: how much of their work they have done, and how
long they and it will take.

Time beside a neighbour counts divided by xi, as the remaining times of theorem 1 (Castor paper,
5.1) are those of the job running alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from carmad.plugin import GpuView, Job, JobId, View
from policies.castor.interference import Interference
from policies.castor.pairing import StepModel, accumulations

# A job that has outlived its prediction is assumed to have this share of its run time left: if it
# counted as about to end, no job would ever join it.
OVERRUN = 0.1

Worked = Mapping[JobId, float]  # seconds of running alone


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
    """The step model from reports by runs of the job (`carma report --step`). Without any, a step
    counts as one second: only the ratio of durations matters."""
    return StepModel.fit(job.steps, batch(job)) or StepModel.assume(1.0, batch(job))


def left_s(job: Job, worked_s: float) -> float:
    """Its remaining run time alone after `worked_s` alone, given the slowdown by its accumulation,
    which stays; infinite without a prediction, 0 once it was told to stop."""
    if job.expected_s is None:
        return math.inf
    if job.leaves:
        return 0.0
    whole_s = job.expected_s * steps(job).slowdown(batch(job), job.accumulation)
    return whole_s - worked_s if worked_s < whole_s else OVERRUN * worked_s


def batch(job: Job) -> int:
    """The batch size that may be split, if the owner declared one; otherwise 1."""
    return job.spec.batch_size or 1


def most_passes(job: Job) -> int:
    *_, most = accumulations(batch(job))
    return most


class Pace(NamedTuple):
    """Of one attempt, from `at` on."""

    attempt: int
    at: float
    worked_s: float  # by then
    rate: float  # work per second; 1 alone


@dataclass(frozen=True, slots=True)
class Paces:
    """Of the jobs that ran at the last plan: what Castor remembers.

    Castor is asked only while jobs wait, so a neighbour that has left counts until the next plan.
    One that has come counts from its start.
    """

    by_job: Mapping[JobId, Pace]

    def now(self, view: View, interference: Interference) -> Paces:
        """Those of the jobs that run in this view, beside the neighbours that they have in it."""
        slowed = _rates(view, interference)
        found = {}
        for job in view.running:
            begun_at = view.now if job.started_at is None else job.started_at
            pace = self.by_job.get(job.id)
            if pace is None or pace.attempt != job.attempt:
                pace = Pace(job.attempt, begun_at, job.served_s, 1.0)
            rate, since = slowed.get(job.id, (1.0, view.now))
            since = min(max(pace.at, since), view.now)
            before_s, beside_s = since - pace.at, view.now - since
            worked_s = pace.worked_s + max(0.0, before_s) * pace.rate + beside_s * rate
            found[job.id] = Pace(job.attempt, view.now, worked_s, rate)
        return Paces(found)

    @property
    def work(self) -> Worked:
        return {job: pace.worked_s for job, pace in self.by_job.items()}


def recall(view: View) -> Paces:
    return view.memory if isinstance(view.memory, Paces) else Paces({})


def _rates(view: View, interference: Interference) -> Mapping[JobId, tuple[float, float]]:
    """The rate of each job beside the neighbour that slows it most, and since when it is there."""
    found: dict[JobId, tuple[float, float]] = {}
    for gpu in view.gpus:
        if len(gpu.residents) != 2 or any(job.profile is None for job in gpu.residents):
            continue
        one, other = gpu.residents
        ratios = interference(one, other, gpu.gpu.memory_mib, view)
        for job, neighbour, ratio in ((one, other, ratios[0]), (other, one, ratios[1])):
            since = view.now if neighbour.started_at is None else neighbour.started_at
            found[job.id] = min(found.get(job.id, (1.0, view.now)), (1 / ratio, since))
    return found
