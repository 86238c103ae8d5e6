"""EASY backfilling: who may start before the first job that waits, without delaying it."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple, TypeVar

from carmad.plugin import (
    MINUTE_S,
    GpuId,
    Job,
    JobId,
    Left,
    Placement,
    Preemption,
    Proposal,
    Reason,
    View,
    exactly,
    idle,
    left,
)
from policies.defragmenting import defragment
from policies.rules import Rules
from policies.views import Promise, fewest

P = TypeVar("P", bound=Proposal)

SEEN = 64  # jobs behind the first that waits: a plan is made every second
EXPLAINED = 4  # the first of them, which get a verdict on each GPU
SOON_S = 300.0  # a wait for which nobody is moved


class Kept(NamedTuple):
    """What is kept for the first job that waits."""

    job: JobId
    until: float  # jobs that end by then may use it; infinite: all may
    others: Rules | None  # the rules for all others; None: they wait
    fillers: Rules | None  # the rules for those of them that may fill; None: they wait, too


NOTHING = Kept(JobId(0), math.inf, None, None)


def backfill(rules: Rules, view: View) -> tuple[Proposal, ...]:
    """EASY: the first job that waits is promised the GPUs that will have room for it first. Later
    ones may use others, and those if they end in time, or leave it room; or, where they can be
    suspended for it, as fillers, until it can start without them. Where nobody knows when that is,
    they may use all, until it has waited for too long."""
    plan: list[Proposal] = []
    kept: Kept | None = None
    room_mib = view.filling_mib
    seen = 0  # jobs behind the one that waits
    for job in view.queue:
        if kept:
            placement = _place_behind(rules, kept, job, view, room_mib)
        else:
            placement = rules.place(job, view)
        if placement.gpus:
            plan.append(placement)
            if placement.filler:
                room_mib -= _moved_mib(job, placement, view)
            view = view.with_placement(job, placement.gpus)
        elif kept is None:
            kept, why, victims = _keep_for(rules, job, view)
            plan += [*victims, replace(placement, reasons=(*placement.reasons, *why))]
            if kept is NOTHING:  # the next one that waits may have a promise
                kept = None
                seen += 1
        elif seen <= EXPLAINED and placement.verdicts:
            plan.append(placement)
        seen += kept is not None
        if seen > SEEN:
            break
    return tuple(plan)


def _place_behind(rules: Rules, kept: Kept, job: Job, view: View, room_mib: int) -> Placement:
    """Behind the first that waits. `room_mib`: what the host can take of fillers."""
    if kept.until == math.inf or view.now + _longest_s(job, view.now) <= kept.until:
        return rules.place(job, view)
    placement = kept.others.place(job, view) if kept.others else Placement(job.id)
    if placement.gpus or kept.fillers is None or not view.may_fill(job):
        return placement
    early = kept.fillers.place(job, view)
    too_large = _moved_mib(job, early, view) > room_mib
    if too_large or any(view.gpu(gpu).gpu.is_mig for gpu in early.gpus):
        return placement
    if early.gpus:
        before = Reason("filler", detail=f"job {kept.job}")
        early = replace(early, filler=True, explanation=(*early.explanation, before))
    return early


def _keep_for(
    rules: Rules, head: Job, view: View
) -> tuple[Kept, tuple[Reason, ...], Sequence[Proposal]]:
    """What is kept for the first job that waits; reasons for it; and whom to suspend or move."""
    if room := _make_room(rules, head, view):
        return room
    if soon := rules.settled(head, view):
        return Kept(head.id, -math.inf, rules.without(soon, view.now), None), (), ()

    def lasts(job: Job) -> Left:
        return exactly(0.0) if job.current.filler else left(job, view.now)

    promise = rules.promise(head, view, lasts, can_share=True)
    if promise is None:
        return NOTHING, (), ()
    is_known, in_s = promise.unknown is None, promise.at - view.now
    if not (is_known and in_s <= SOON_S) and (found := defragment(rules, head, view)):
        goals = [gpu for move in found.moves for gpu in move.gpus]
        kept = _keep(rules, head, view, (*found.gpus, *goals))
        return kept, (_making_room(head, view, found.gpus, found.leaving),), found.moves
    is_soon = in_s < MINUTE_S  # a job that has just resumed could not leave
    fillers = rules if view.filling_mib and not (is_known and is_soon) else None
    if not is_known and fillers:
        matters = view.fillers or head is not view.queue[-1]
        filled = (Reason("filled", detail=f"job {promise.unknown}"),) if matters else ()
        return Kept(head.id, -math.inf, None, fillers), filled, ()
    if not is_known and not is_overdue(head, view):
        return Kept(head.id, math.inf, None, None), promise_in_words(promise, head, view), ()
    # whoever joins makes a GPU settle anew
    spares = None if is_known and is_soon else rules.spares(head, view, promise.leaving)
    others = rules.without(promise, view.now, spares)
    why = promise_in_words(promise, head, view)
    return Kept(head.id, promise.at, others, fillers), why, ()


def promise_in_words(
    promise: Promise, head: Job, view: View, passing: str = ""
) -> tuple[Reason, ...]:
    """When the GPUs are expected to be free, unless others may still go first (`passing`: who); or,
    if that matters to anybody, whose end nobody knows, and for how long others may go first for
    that."""
    if promise.unknown is None:
        return (Reason("promised", promise.at - view.now, len(promise.gpus), "s", passing),)
    if len(view.queue) == 1:
        return ()
    whose = f"job {promise.unknown}"
    if is_overdue(head, view):
        return (Reason("kept", have=len(promise.gpus), detail=whose),)
    last_s = view.settings.limits.overtaken_s - view.waited_s(head)
    return (Reason("no_promise", last_s, unit="s", detail=whose),)


def is_overdue(job: Job, view: View) -> bool:
    """Whether it may be overtaken no longer, whoever is in its way. One that is tried again has its
    turn first."""
    return job.retry is not None or view.waited_s(job) >= view.settings.limits.overtaken_s


def _make_room(
    rules: Rules, head: Job, view: View
) -> tuple[Kept, tuple[Reason, ...], Sequence[Proposal]] | None:
    """Suspend as few fillers as the head needs gone to start. None: that would not help."""
    able = view.fillers_behind(head)

    def find_gpus(gone: Sequence[Job]) -> tuple[GpuId, ...]:
        return rules.place(head, view.without({job.id for job in gone})).gpus

    victims = fewest(able, lambda gone: bool(find_gpus(gone))) if able else None
    if victims is None:
        return None
    gpus, gone = find_gpus(victims), {job.id for job in victims}
    why = Reason("preempted", detail=f"job {head.id} goes first")
    reasons = (_making_room(head, view, gpus, gone),)
    return _keep(rules, head, view, gpus), reasons, [Preemption(id, why) for id in gone]


def _keep(rules: Rules, head: Job, view: View, gpus: tuple[GpuId, ...]) -> Kept:
    """These GPUs, for as long as it takes until they are free."""
    elsewhere = rules.without(Promise(head.id, gpus, view.now), view.now)
    return Kept(head.id, -math.inf, None, elsewhere)


def _making_room(head: Job, view: View, gpus: Sequence[GpuId], gone: Set[JobId]) -> Reason:
    free = sum(gone.isdisjoint(job.id for job in view.gpu(gpu).residents) for gpu in gpus)
    names = ", ".join(f"job {id}" for id in sorted(gone))
    return Reason("making_room", head.spec.gpus, free, "GPUs", names)


def _moved_mib(job: Job, placement: Placement, view: View) -> int:
    """What the host has to take if the job is suspended where it is to go."""
    if job.suspension:
        return 0  # the host has it
    most = (view.gpu(gpu).free_mib for gpu in placement.gpus)
    return sum(min(free, job.need.safe_mib) if job.need else free for free in most)


def hold_line(proposal: P, head: Job, view: View) -> P | Placement:
    """The head's placement, with a reason if GPUs stay idle for it that others behind could use."""
    if not isinstance(proposal, Placement) or proposal.job != head.id:
        return proposal
    willing = {verdict.gpu for verdict in proposal.verdicts if not verdict.refused}
    unused = sum(gpu.id in willing and not idle(gpu, view.settings) for gpu in view.gpus)
    if not unused:
        return proposal
    reason = Reason("holds_line", head.spec.gpus, unused, "GPUs")
    return replace(proposal, reasons=(*proposal.reasons, reason))


def _longest_s(job: Job, now: float) -> float:
    """How long a waiting job may take: its time limit, which is certain, or else what earlier runs
    of it took at most. What its owner's other jobs took says nothing of it."""
    limit_s = job.spec.time_limit_s
    return job.at_most_s(now) if limit_s is None else limit_s - job.attained_s(now)
