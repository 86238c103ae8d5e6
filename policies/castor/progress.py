"""How much of their work running jobs have done: time beside a neighbour counts divided by xi, as
the remaining times of theorem 1 (Castor paper, 5.1) are those of the job running alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from carmad.plugin import JobId, View
from policies.castor.interference import Interference

Worked = Mapping[JobId, float]  # seconds of running alone


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
