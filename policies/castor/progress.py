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
    """What Castor remembers. Castor is asked only while jobs wait, so a neighbour that leaves
    meanwhile counts until the next plan."""

    by_job: Mapping[JobId, Pace]

    def worked(self, view: View) -> Worked:
        """By every running job. What came before the first plan that saw it counts in full."""
        found = {}
        for job in view.running:
            pace = self.by_job.get(job.id)
            if pace and pace.attempt == job.attempt:
                found[job.id] = pace.worked_s + max(0.0, view.now - pace.at) * pace.rate
            else:
                found[job.id] = job.attained_s(view.now)
        return found


def remembered(view: View) -> Paces:
    return view.memory if isinstance(view.memory, Paces) else Paces({})


def paces(view: View, worked: Worked, interference: Interference) -> Paces:
    """From now on, with the neighbours that jobs have in this view."""
    rates: dict[JobId, float] = {}
    for gpu in view.gpus:
        if len(gpu.residents) != 2 or any(job.profile is None for job in gpu.residents):
            continue
        ratios = interference(*gpu.residents, gpu.gpu.memory_mib, view)
        for job, ratio in zip(gpu.residents, ratios, strict=True):
            rates[job.id] = min(rates.get(job.id, 1.0), 1 / ratio)
    return Paces(
        {
            job.id: Pace(
                job.attempt, view.now, worked.get(job.id, job.served_s), rates.get(job.id, 1.0)
            )
            for job in view.running
        }
    )
