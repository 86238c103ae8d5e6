"""The policy's memory: who is to join whom, and the last plan, which holds until something changes.

A plan that starts nothing mostly would start nothing later, either, unless one of the jobs that it
covers or the memory of a GPU changes, or a running job outlives its prediction. But joining a job
that is nearly done delays it less, so that time alone may make it worth while: no plan is older
than `LONGEST_S`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, JobId, Settings, View
from policies.cuckoo.members import Site
from policies.cuckoo.schedule import Schedule

LONGEST_S = 60.0  # that a plan is kept


class Look(NamedTuple):
    """What matters of a GPU. No third job joins two, so what room they leave does not."""

    id: GpuId
    residents: tuple[Job, ...]
    external_mib: int
    mps_user: tuple[int, str] | None
    mps_stray: tuple[int, str] | None
    free_mib: int = 0
    settled: bool = False

    @classmethod
    def at(cls, gpu: GpuView) -> Look:
        look = cls(gpu.gpu.id, gpu.residents, gpu.external_mib, gpu.mps_user, gpu.mps_stray)
        if len(gpu.residents) > 1:
            return look
        return look._replace(free_mib=gpu.free_mib, settled=gpu.settling is None)


class Basis(NamedTuple):
    """What a plan was made from, apart from the time."""

    line: Sequence[Job]
    partners: Mapping[JobId, Job]
    gpus: Sequence[Look]
    settings: Settings

    @classmethod
    def of(
        cls, view: View, line: Sequence[Job], partners: Mapping[JobId, Job], where: Site
    ) -> Basis:
        return cls(line, partners, [Look.at(gpu) for gpu in where.gpus], view.settings)


class Made(NamedTuple):
    """A plan that was made."""

    at: float
    basis: Basis
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Memory:
    joining: tuple[tuple[JobId, JobId], ...] = ()  # by running job, the queued one that will join
    made: Made | None = None


def still_valid(view: View, basis: Basis) -> Made | None:
    """The last plan, if nothing has changed since."""
    made = view.memory.made if isinstance(view.memory, Memory) else None
    if made is None or made.basis != basis:
        return None
    due_at = made.schedule.due_at
    until = min(made.at + LONGEST_S, math.inf if due_at is None else due_at)
    return made if made.at <= view.now < until else None
