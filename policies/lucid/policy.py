"""Lucid: which jobs are profiled, which are packed together, and in what order jobs start (Lucid
paper, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from carmad.plugin import GpuId, Job, Proposal, Reason, View
from policies.lucid import packing
from policies.lucid.binder import Binder
from policies.lucid.mode import Capacity, next_change, sharing_capacity
from policies.lucid.profiling import profiler
from policies.lucid.settings import LucidSettings
from policies.lucid.stability import evictions
from policies.lucid.traits import Known, service
from policies.lucid.turn import Turn
from policies.ranked import by_arrival

ANY = Capacity(2 * packing.SCORES["jumbo"], math.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Lucid:
    """The fields after `settings` are for ablations (Lucid paper, 4.5 and figure 11)."""

    name: str = "lucid"
    settings: LucidSettings = field(default_factory=LucidSettings)
    sharing: Literal["affine", "naive", "off"] = "affine"  # naive: wherever memory allows it
    estimated: bool = True  # False: ignore predicted durations, for both order and packing
    space_aware: bool = True  # False: jobs are profiled in order of arrival
    time_aware: bool = True  # False: the profiler never borrows GPUs
    known: Known = field(default_factory=Known, init=False, repr=False)

    def order(self, job: Job) -> float:
        return service(job) if self.estimated else by_arrival(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        on = profiler(view, self.time_aware)
        new = sorted(filter(on.takes, view.queue), key=self._profiling_order) if on.own else []
        turn = Turn(view, on, self._binder(view, on.own))
        turn.profile(new)
        turn.place(_without(view.queue, new))
        return (*evictions(view), *turn.plan, *next_change(view, self.settings))

    def _binder(self, view: View, reserved: frozenset[GpuId]) -> Binder | Reason:
        """The binder, or why sharing is off."""
        tree = packing.model(view.models)
        if self.sharing == "naive":
            return Binder(view, ANY, self.known.traits(tree, by_arrival), reserved)
        if self.sharing == "off":
            return Reason("sharing_off")
        capacity = sharing_capacity(view, self.settings)
        if isinstance(capacity, Reason):
            return capacity
        return Binder(view, capacity, self.known.traits(tree, self.order), reserved)

    def _profiling_order(self, job: Job) -> float:
        return job.spec.gpus if self.space_aware else job.submitted_at


def _without(queue: Sequence[Job], new: Sequence[Job]) -> Sequence[Job]:
    ids = {job.id for job in new}
    return [job for job in queue if job.id not in ids] if ids else queue
