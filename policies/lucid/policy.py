"""Lucid: which jobs are profiled, which are packed together, and in what order jobs start (Lucid
paper, section 3: algorithms 1 and 2).

In algorithm 2 a job joins an affine one if there is one, and otherwise takes idle GPUs; either way,
the next job has its turn. Idle GPUs come second as in the paper: when many are idle, the mode makes
packing rarer. With sharing off, the first job that does not fit ends the turn (line 16, as in the
artifact).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from carmad.plugin import (
    Demand,
    GpuId,
    GpuView,
    Job,
    Placement,
    Proposal,
    Reason,
    Settings,
    Tree,
    Verdict,
    View,
    find_model,
    idle,
)
from policies.filters import fits_memory
from policies.lucid import LucidSettings, traits
from policies.lucid.binder import Binder
from policies.lucid.mode import Capacity, next_change, profiler, sharing_capacity
from policies.lucid.room import Room, idle_but, idle_of, refusals
from policies.lucid.traits import Known, evictions
from policies.profiling import ProfilingPool, profiling_run
from policies.reasons import expectation
from policies.rules import by_arrival, least_service

# A queue may be long, and there may be many GPUs: a plan gives reasons for the first REPORTED
# waiting jobs, and verdicts per GPU until there are VERDICTS.
REPORTED = 8
VERDICTS = 128

BESIDE, ALONE = 0.0, 1.0  # ranks
NOTHING = frozenset[GpuId]()

ANY = Capacity(2 * traits.SCORES["jumbo"], math.inf)


class Turn:
    def __init__(self, view: View, profiler: ProfilingPool, binder: Binder | Reason) -> None:
        self.plan: list[Placement] = []
        self._view = view
        self._profiler = profiler
        self._binder = binder
        self._fits = fits_memory(view.settings.preconditions_for("lucid"), view.settings)
        self._verdicts_left = VERDICTS
        self._server_per_node = view.settings.collocation.mps_scope == "node"

    # -- the profiler's line (algorithm 1)

    def profile(self, line: Sequence[Job]) -> None:
        """Place jobs on the profiler's GPUs, up to the first that does not fit."""
        if not line:
            return
        gpus = [gpu for gpu in self._view.node_of if gpu in self._profiler.gpus]
        room = idle_of(self._profiler.gpus, self._view)
        waiting = 0
        for job in line:
            wanted = self._view.demand(job, profiling=True)
            verdicts = self._verdicts(job, wanted, gpus)
            if not waiting and (taken := room.choose(wanted, self._view, self._fits)):
                run_s = self._profiler.run_s
                self._give(job, taken, verdicts, profile_s=run_s, evict=True)
                self._take(room, taken)
                continue
            waiting += 1
            reason = Reason("profiling_gpus", wanted.gpus, room.free, "GPUs")
            self.plan.append(Placement(job.id, (), verdicts, (reason,)))
            if waiting == REPORTED:
                break

    # -- the main line (algorithm 2)

    def place(self, line: Iterable[Job]) -> None:
        own, view = self._profiler.own, self._view
        room, kept = idle_but(own, view), idle_of(own, view).free
        off = isinstance(self._binder, Reason)
        partners = {} if isinstance(self._binder, Reason) else self._binder.partners
        waiting = 0
        for job in line:
            if job.spec.gpus in partners and self._join(job, room):
                continue
            if job.spec.gpus <= room.free + kept and self._settle(job, room):
                continue
            waiting += 1
            if waiting <= REPORTED:
                self._wait(job, room)
            elif not (partners or room.free or kept):
                break  # no job behind can start
            if off:
                break

    def _join(self, job: Job, room: Room) -> bool:
        """Place the job on the GPUs of an affine one."""
        binder = self._binder
        if isinstance(binder, Reason):
            return False
        partner = binder.partner(job)
        if partner is None:
            return False
        verdicts = self._main_verdicts(job, self._view.demand(job))
        self._give(job, partner.gpus, verdicts, binder.explanation(job, partner))
        binder.bind(partner)
        self._take(room, partner.gpus)
        return True

    def _settle(self, job: Job, room: Room) -> bool:
        """Place the job on idle GPUs, and profile it there if it has no profile."""
        main = self._apart(job) == self._profiler.own
        idle_gpus = room if main else idle_but(NOTHING, self._view)
        if job.spec.gpus > idle_gpus.most(job.spec.gpus):
            return False
        knobs = self._view.settings.profiling
        new = job.profile is None and job.spec.gpus <= knobs.largest
        wanted = self._view.demand(job, profiling=new)
        taken = idle_gpus.choose(wanted, self._view, self._fits)
        if not taken:
            return False
        profile_s = knobs.run_s if new else None
        self._give(job, taken, self._main_verdicts(job, wanted), profile_s=profile_s)
        self._take(room, taken)
        return True

    def _wait(self, job: Job, room: Room) -> None:
        reasons = [Reason("no_room", job.spec.gpus, room.most(job.spec.gpus), "GPUs")]
        if isinstance(self._binder, Reason):
            reasons.append(self._binder)
        verdicts = self._main_verdicts(job, self._view.demand(job))
        self.plan.append(Placement(job.id, (), verdicts, tuple(reasons)))

    def _apart(self, job: Job) -> Set[GpuId]:
        """The GPUs closed to the job: the profiler's, unless the others are too few for it."""
        own = self._profiler.own
        return own if job.spec.gpus <= len(self._view.node_of) - len(own) else NOTHING

    # -- both

    def _give(
        self,
        job: Job,
        taken: Sequence[GpuView],
        verdicts: tuple[Verdict, ...],
        *why: Reason,
        profile_s: float | None = None,
        evict: bool = False,
    ) -> None:
        gpus = tuple(gpu.id for gpu in taken)
        placement = Placement(job.id, gpus, verdicts, explanation=(*why, *expectation(job)))
        if profile_s is not None:
            placement = profiling_run(placement, job, self._view, profile_s, evict)
        self.plan.append(placement)
        self._view = self._view.with_placement(job, gpus, placement.profiling)

    def _take(self, room: Room, gpus: Sequence[GpuView]) -> None:
        """Take a placed job's GPUs out of the room. A client of a node's MPS server also closes the
        node's other GPUs to other users' jobs; otherwise a job changes only its own."""
        room.without(gpus)
        if self._server_per_node:
            room.renew(self._view)
            if isinstance(self._binder, Binder):
                self._binder.view = self._view

    # -- verdicts

    def _main_verdicts(self, job: Job, wanted: Demand) -> tuple[Verdict, ...]:
        return self._verdicts(job, wanted, self._view.node_of, self._apart(job))

    def _verdicts(
        self, job: Job, wanted: Demand, gpus: Collection[GpuId], apart: Set[GpuId] = NOTHING
    ) -> tuple[Verdict, ...]:
        if len(gpus) > self._verdicts_left:
            return ()
        self._verdicts_left -= len(gpus)
        return tuple(
            Verdict(gpu, (Reason("kept_for_profiling"),))
            if gpu in apart
            else self._verdict(job, wanted, self._view.gpu(gpu))
            for gpu in gpus
        )

    def _verdict(self, job: Job, wanted: Demand, gpu: GpuView) -> Verdict:
        refused = refusals(wanted, gpu, self._view) or tuple(self._objections(job, wanted, gpu))
        rank = BESIDE if gpu.residents else ALONE
        return Verdict(gpu.id, refused, None if refused else rank)

    def _objections(self, job: Job, wanted: Demand, gpu: GpuView) -> Iterator[Reason]:
        if not gpu.residents:
            reasons = (idle(gpu, self._view.settings), self._fits(wanted, gpu))
            yield from filter(None, reasons)
        elif isinstance(self._binder, Reason):
            yield self._binder
        else:
            yield from self._binder.objections(job, gpu)


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
        return least_service(job) if self.estimated else by_arrival(job)  # line 4

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        on = profiler(view, self.time_aware)
        new = sorted(filter(on.takes, view.queue), key=self._profiling_order) if on.own else []
        turn = Turn(view, on, self._binder(view, on.own))
        turn.profile(new)
        ids = {job.id for job in new}
        turn.place(job for job in view.queue if job.id not in ids)
        return (*evictions(view), *turn.plan, *next_change(view, self.settings))

    def _binder(self, view: View, reserved: frozenset[GpuId]) -> Binder | Reason:
        """The binder, or why sharing is off."""
        tree = find_model(traits.MODEL, Tree, view.models)
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


def lucid(settings: Settings, own: LucidSettings) -> Lucid:
    """`[profiling]` is read from each view."""
    return Lucid(settings=own)
