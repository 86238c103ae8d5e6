"""The policy's memory: who is to join whom, and the last plan, which holds until something changes.

A plan that starts nothing mostly would start nothing later, either, unless one of the jobs that it
covers or the memory of a GPU changes, or a running job outlives its prediction. But joining a job
that is nearly done delays it less, so that time alone may make it worth while: no plan is older
than `LONGEST_S`. While no GPU could take any of the jobs, a plan only shows when their turns are,
and is kept for as long whatever changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, JobId, Settings, View
from policies.cuckoo.schedule import Schedule
from policies.cuckoo.site import Site

LONGEST_S = 60.0  # that a plan is kept


def facts(job: Job) -> tuple[object, ...]:
    """What a plan depends on of a job. What is measured while it runs is not in it."""
    return (
        *(job.id, job.spec, job.submitted_at, job.awaits_estimate, job.gpus),
        *(job.estimate, job.retry, job.prediction, job.profile, job.steps, job.stage_times),
        *(job.started_at, job.served_s, job.current.suspended_s, job.leaves, job.profiling),
    )


class Look(NamedTuple):
    """What matters of a GPU. No third job joins two, so what room they leave does not."""

    id: GpuId
    residents: tuple[tuple[object, ...], ...]  # `facts`
    external_mib: int
    mps_user: tuple[int, str] | None
    mps_stray: tuple[int, str] | None
    free_mib: int = 0
    settled: bool = False

    @classmethod
    def at(cls, gpu: GpuView) -> Look:
        residents = tuple(map(facts, gpu.residents))
        look = cls(gpu.id, residents, gpu.external_mib, gpu.mps_user, gpu.mps_stray)
        if len(gpu.residents) > 1:
            return look
        return look._replace(free_mib=gpu.free_mib, settled=gpu.settling is None)


class Basis(NamedTuple):
    """What a plan was made from, apart from the time."""

    settings: Settings
    line: Sequence[Job]
    partners: Mapping[JobId, Job]
    gpus: Sequence[Look]

    @classmethod
    def of(
        cls, view: View, line: Sequence[Job], partners: Mapping[JobId, Job], where: Site
    ) -> Basis:
        looks = [gpu.memo.recall(Look, Look.at, gpu) for gpu in where.gpus]
        return cls(view.settings, line, partners, looks)

    def is_like(self, other: Basis) -> bool:
        """Whether the same plan would come of both at the same time."""
        return (
            self.partners.keys() == other.partners.keys()
            and self.gpus == other.gpus
            and _are_like(self.line, other.line)
            and _are_like(self.partners.values(), other.partners.values())
        )


def _are_like(jobs: Collection[Job], others: Collection[Job]) -> bool:
    pairs = zip(jobs, others, strict=False)
    return len(jobs) == len(others) and all(
        one is other or facts(one) == facts(other) for one, other in pairs
    )


class Made(NamedTuple):
    """A plan that was made."""

    at: float
    basis: Basis
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Memory:
    joining: tuple[tuple[JobId, JobId], ...] = ()  # by running job, the queued one that will join
    made: Made | None = None


def find_valid(view: View, basis: Basis, may_start: bool) -> Made | None:
    """The last plan, if it is still valid. `may_start`: some job might."""
    made = view.memory.made if isinstance(view.memory, Memory) else None
    if made is None or made.basis.settings != basis.settings:
        return None
    if may_start and not made.basis.is_like(basis):
        return None
    due_at = made.schedule.due_at
    until = min(made.at + LONGEST_S, math.inf if due_at is None else due_at)
    return made if made.at <= view.now < until else None
