"""EASY backfilling: who may start before the first job that waits, without delaying it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, TypeVar

from carmad.plugin import MINUTE_S, Job, Placement, Proposal, Reason, View, idle, left
from policies.rules import Rules
from policies.views import Promise

P = TypeVar("P", bound=Proposal)

SEEN = 64  # jobs behind the first that waits: a plan is made every second
EXPLAINED = 4  # the first of them, which get a verdict on each GPU


class Kept(NamedTuple):
    """What is kept for the first job that waits."""

    until: float  # jobs that end by then may use it; infinite: all may
    others: Rules | None  # the rules for all others; None: they wait


NOTHING = Kept(math.inf, None)


def backfill(rules: Rules, view: View) -> tuple[Proposal, ...]:
    """EASY: the first job that waits is promised the GPUs that will have room for it first. Later
    ones may use others, and those if they end in time, or leave it room. Where nobody knows when
    that is, they may use all, until it has waited for too long."""
    plan: list[Proposal] = []
    kept: Kept | None = None
    seen = 0  # jobs behind the one that waits
    for job in view.queue:
        placement = _place_behind(rules, kept, job, view) if kept else rules.place(job, view)
        if placement.gpus:
            plan.append(placement)
            view = view.with_placement(job, placement.gpus)
        elif kept is None:
            kept, why = _keep_for(rules, job, view)
            plan.append(replace(placement, reasons=(*placement.reasons, *why)))
            if kept is NOTHING:  # the next one that waits may have a promise
                kept = None
                seen += 1
        elif seen <= EXPLAINED and placement.verdicts:
            plan.append(placement)
        seen += kept is not None
        if seen > SEEN:
            break
    return tuple(plan)


def _place_behind(rules: Rules, kept: Kept, job: Job, view: View) -> Placement:
    """Behind the first that waits."""
    if kept.until == math.inf or view.now + _longest_s(job, view.now) <= kept.until:
        return rules.place(job, view)
    return kept.others.place(job, view) if kept.others else Placement(job.id)


def _keep_for(rules: Rules, head: Job, view: View) -> tuple[Kept, tuple[Reason, ...]]:
    """What is kept for the first job that waits, and reasons for it."""
    if soon := rules.settled(head, view):
        return Kept(-math.inf, rules.without(soon, view.now)), ()
    promise = rules.promise(head, view, lambda job: left(job, view.now), can_share=True)
    if promise is None:
        return NOTHING, ()
    is_known = promise.unknown is None
    why = promise_in_words(promise, head, view)
    if not is_known and not is_overdue(head, view):
        return Kept(math.inf, None), why
    # whoever joins makes a GPU settle anew
    is_soon = is_known and promise.at - view.now < MINUTE_S
    spares = None if is_soon else rules.spares(head, view, promise.leaving)
    return Kept(promise.at, rules.without(promise, view.now, spares)), why


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
