"""SJF-BSBF: shortest job first, best sharing benefit first (Castor paper, 5.2, algorithm 1).

A job is profiled before it may share with others (section 7): on the GPUs reserved by
`profiling.gpus`, from which it is requeued; if there are none, or it is too large for them or must
not be restarted, on idle GPUs, where it stays. It is profiled once, with as many GPUs as it asks
for: the paper profiles with 1, 2, 4 and 8, but no job ever gets another number than its own.
Jobs of unknown duration do not share either.

A waiting job does not block those behind it, as in line 2, so large jobs may wait for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carmad.plugin import Job, Placement, Proposal, Reason, Remember, Settings, Verdict, View
from policies.builtin import in_order
from policies.castor.interference import Predicted
from policies.castor.neighbours import Worked, left_s, recall, unknown
from policies.castor.sharing import Newcomer, Room, Sharing, look, newcomer
from policies.filters import fits_memory, only_idle
from policies.profiling import only, profile_aside, profiling_run, set_aside
from policies.ranked import Ranked
from policies.reasons import expectation

EXPLAINED = 4  # the first waiting jobs, which get a verdict on each GPU
TURNS = 500  # waiting jobs tried per plan: not thousands every second


@dataclass(frozen=True, slots=True, eq=False)
class Castor:
    """`unshared` places a job on idle GPUs, as close together as possible (line 7)."""

    name: str
    unshared: Ranked
    sharing: Sharing

    def order(self, job: Job) -> float:
        return left_s(job, job.served_s)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        paces = recall(view).now(view, self.sharing.interference)
        return (*self._plan(view, paces.work), Remember(paces))

    def _plan(self, view: View, worked: Worked) -> tuple[Placement, ...]:
        aside = set_aside(view)
        if not aside.own:
            return self._places(view, view.queue, worked)
        new: list[Job] = []
        known: list[Job] = []
        for job in view.queue:
            (new if aside.takes(job) else known).append(job)
        most = len(view.node_of) - len(aside.own)
        profiles, view = profile_aside(aside, new, self.unshared, view)
        main = only(view, lambda gpu: gpu not in aside.own)
        plan = (
            *profiles,
            *self._places(main, [job for job in known if job.spec.gpus <= most], worked),
        )
        # A job that needs more than the other GPUs may use all, or it could never start.
        wide = [job for job in known if job.spec.gpus > most]
        if any(placement.gpus for placement in plan):
            return plan
        return (*plan, *self._places(view, wide, worked))

    def _places(self, view: View, jobs: Sequence[Job], worked: Worked) -> tuple[Placement, ...]:
        """Tries each job in turn while there are GPUs left."""
        plan: list[Placement] = []
        room, waiting = look(view, worked), 0
        for job in jobs:
            if waiting >= (TURNS if room.idle or room.neighbours else EXPLAINED):
                break
            placement = self._turn(job, room, explain=waiting < EXPLAINED)
            if placement.gpus or waiting < EXPLAINED:
                plan.append(placement)
            if not placement.gpus:
                waiting += 1
            elif job is not jobs[-1]:
                profiling, passes = placement.profiling, placement.accumulation
                view = room.view.with_placement(job, placement.gpus, profiling, passes)
                room = look(view, worked)
        return tuple(plan)

    def _turn(self, job: Job, room: Room, explain: bool) -> Placement:
        if job.spec.gpus <= len(room.idle) and (placed := self._alone(job, room.view)):
            return placed
        new = newcomer(job, room.view)
        if new and (placed := self._beside(new, room)):
            return placed
        no_room = Reason("no_room", job.spec.gpus, len(room.idle), "GPUs")
        if not explain:
            return Placement(job.id, reasons=(no_room,))
        verdicts = self._verdicts(job, new, room)
        return Placement(job.id, (), verdicts, (*_obstacles(job, verdicts), no_room))

    def _alone(self, job: Job, view: View) -> Placement | None:
        """A placement on idle GPUs, with a profiling run if the job has no profile."""
        placement = self.unshared.place(job, view)
        if not placement.gpus:
            return None
        settings = view.settings.profiling
        if job.profile is not None or job.spec.gpus > settings.largest:
            return replace(placement, explanation=expectation(job))
        return profiling_run(placement, job, view, settings.run_s, evict=False)

    def _beside(self, new: Newcomer, room: Room) -> Placement | None:
        """A placement on neighbours' GPUs, and on idle ones for the rest."""
        choice = self.sharing.choose(new, room)
        if choice is None or len(choice.gpus) + len(room.idle) < new.wanted.gpus:
            return None
        job, verdicts = new.job, self._verdicts(new.job, new, room)
        idle = {gpu.id for gpu in room.idle}
        free = tuple(v.gpu for v in verdicts if v.gpu in idle and not v.refused)
        gpus = (*choice.gpus, *free)[: new.wanted.gpus]
        if len(gpus) < new.wanted.gpus:
            return None
        explanation = (*expectation(job), *choice.explanation)
        return Placement(
            job.id, gpus, verdicts, accumulation=choice.accumulation, explanation=explanation
        )

    def _verdicts(self, job: Job, new: Newcomer | None, room: Room) -> tuple[Verdict, ...]:
        """As for a job that must be alone, except for GPUs that it might share."""
        alone = self.unshared.place(job, room.view).verdicts
        if new is None:
            return alone
        return self.sharing.verdicts(new, alone, room)


def castor(settings: Settings) -> Castor:
    conditions = settings.preconditions_for("castor")
    filters = (only_idle(settings), fits_memory(conditions, settings))
    return Castor(
        "castor",
        Ranked("castor", filters, in_order),
        Sharing(conditions, Predicted()),
    )


def _obstacles(job: Job, verdicts: tuple[Verdict, ...]) -> tuple[Reason, ...]:
    """What is unknown about the job itself, or else the neighbour that came closest to a gain."""
    if missing := unknown(job):
        return (Reason(missing, detail="this job"),)
    reasons = (reason for verdict in verdicts for reason in verdict.refused)
    lost = [reason for reason in reasons if reason.code == "no_benefit"]
    return (min(lost, key=lambda reason: reason.have - reason.need),) if lost else ()
