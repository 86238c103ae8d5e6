"""Places queued jobs: asks the policy, checks its plan against the hard rules, and starts jobs."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Literal

from carmad.core.gpus.gpuview import NodeView
from carmad.core.jobs import suspending
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job, advance, start
from carmad.core.jobs.line import Gate
from carmad.core.jobs.states import JobState, Paused
from carmad.core.jobs.tasks import singly
from carmad.core.messages import Launch, Resume, Wake
from carmad.core.placing import deciders
from carmad.core.placing.decision import (
    AskAgain,
    Decision,
    Placement,
    Preemption,
    Reason,
    Remember,
    refuse,
)
from carmad.core.placing.view import IdleGpus, View, mode
from carmad.core.state import State

FEW = 64  # jobs whose `order` is asked for again per step: all of them could take too long


def view(state: State, now: float, joining: Job | None = None) -> View:
    """The policy's view; with `joining`, as if that job were queued."""
    return _view(state, now, joining)


def plan(state: State, now: float) -> None:
    """Ask the policy, start the jobs that it places and stop those that it preempts."""
    if not state.ledger.line():
        return
    _finish_moves(state, now)
    _order_the_unordered(state)
    plans = state.plans
    before = plans.asks_at
    while _plan_once(state, now):
        pass
    for id in tuple(plans.blocked_until):
        if (row := state.ledger.jobs.row(JobId(id))) is None or not row.waits:
            del plans.blocked_until[id]
    _start_without_gpus(state, now)
    suspensions = (job.suspension for job in state.ledger.suspended.values())
    again_at = min((its.again_at for its in suspensions if its and its.again_at > now), default=inf)
    plans.asks_at = min(plans.asks_at, again_at)
    if min(before, plans.asks_at) < inf:
        state.actions.append(Wake(plans.asks_at))


def _gate(state: State, now: float) -> Gate:
    """What keeps queued jobs from the policy, or jobs without GPUs from starting."""
    ledger = state.ledger
    lines = (job for job in ledger.line() if job.spec.gpus), ledger.line_of_cpus()
    known = now, ledger.jobs, ledger.held, state.limits, state.shares
    return Gate(*known, state.settings, state.fleet.unread, lines)


# -- the view


def _view(state: State, now: float, joining: Job | None = None) -> View:
    ledger, fleet, settings, plans = state.ledger, state.fleet, state.settings, state.plans
    line = ledger.line_with(joining) if joining else ledger.line()
    nodes = fleet.nodes(settings, now, ledger.pop_touched(), ledger.residents)
    queue = _ready(state, now, line, nodes)
    return View(
        now,
        nodes,
        fleet.node_of,
        queue,
        ledger.on_gpus(),
        settings,
        state.history,
        state.models,
        plans.last_placed,
        plans.memory,
        bool(fleet.reservations),
        _preemptible(state, now),
        plans.blocked_until,
    )


def _ready(
    state: State, now: float, line: tuple[Job, ...], nodes: tuple[NodeView, ...]
) -> tuple[Job, ...]:
    """The queue without blocked jobs, and without those that await their estimates and would
    get no idle GPUs if all before them took some: they hold up nobody."""
    if state.fleet.unread:
        return ()  # policies are not asked while the GPUs are unknown
    doubtful, gate = state.ledger.conditional, _gate(state, now)
    limited = gate.quotas.any
    if not doubtful and not limited:
        return line
    gpus = (gpu for node in nodes for gpu in node.gpus)
    free = IdleGpus(gpus, state.settings, now if state.fleet.reservations else None)
    ready: list[Job] = []
    before = 0  # GPUs that they want
    for job in line:
        if limited or job.id in doubtful:
            if not job.spec.gpus:
                continue
            estimating = job.state is JobState.PENDING and not free.is_enough(job, before)
            if estimating or gate.blocker(job):
                state.plans.blocked_until[job.ids[-1]] = now
                continue
        ready.append(job)
        before += job.tasks * job.spec.gpus
    return tuple(ready)


def _preemptible(state: State, now: float) -> dict[JobId, Literal["suspend", "requeue"]]:
    if not state.settings.limits.preemption:
        return {}
    running = state.ledger.on_gpus()
    ways = ((job.id, suspending.way_to_preempt(state, job, now)) for job in running)
    return {id: way for id, way in ways if way}


# -- the plan


def _order_the_unordered(state: State) -> None:
    """Retry `order` for a few of the jobs for which it failed."""
    for id in tuple(islice(state.deciding.unordered, FEW)):
        job = state.ledger.jobs.rows.get(id)
        if job and job.waits:
            state.ledger.reorder((job,))
        else:
            del state.deciding.unordered[id]


def _find_hidden(state: State, view: View) -> Set[JobId]:
    """Queued jobs that the view does not show."""
    line = state.ledger.line()
    if view.queue is line:
        return frozenset()
    return {job.id for job in line} - {job.id for job in view.queue}


def _plan_once(state: State, now: float) -> bool:
    """Carry out one plan. True: another plan is needed, as a start has exhausted a quota or an
    array's limit, so that later placements are blocked; or other tasks waited with the job that
    started, and their turn comes before the jobs behind them."""
    plans = state.plans
    plans.asks_at = inf
    view = _view(state, now)
    if not view.queue:
        return False
    made = deciders.make_plan(state, view, lambda: _renew(state, now))
    view, plan = made.view, made.proposals
    hidden = _find_hidden(state, view)
    waiting: list[JobId] = []  # refused, and overtaken by the jobs that start below
    starts = [n for n, each in enumerate(plan) if isinstance(each, Placement) and each.gpus]
    for n, proposal in enumerate(plan):
        if isinstance(proposal, AskAgain):
            plans.asks_at = min(plans.asks_at, proposal.at)
            continue
        if isinstance(proposal, Remember):
            plans.memory = proposal.memory
            continue
        if isinstance(proposal, Preemption):
            _preempt(state, proposal, now, made.by)
            continue
        job, row = state.ledger.jobs.get(proposal.job), state.ledger.jobs.row(proposal.job)
        if job is None or row is None or not job.waits or row.id in hidden:
            continue
        if proposal.gpus and _gate(state, now).blocker(job):
            return True
        checked = _enforce_rules(job, proposal, view)
        _decide(state, Decision(now, made.by, checked))
        if not checked.gpus:
            waiting.append(job.id)
            continue
        for id in waiting:
            passed = state.ledger.jobs.rows[id]
            state.ledger.put(replace(passed, overtaken=passed.overtaken + 1))
        _start(state, job, checked, view)
        if row.tasks > 1:
            return True
        if n < starts[-1]:
            view = view.with_placement(job, checked.gpus, checked.profiling, checked.accumulation)
    return False


def _finish_moves(state: State, now: float) -> None:
    """Let jobs resume where they are to move, if they may. Otherwise they wait like others."""
    for job in tuple(state.ledger.suspended.values()):
        its = job.suspension
        if not (its and its.to and job.state is JobState.SUSPENDED):
            continue
        view = _view(state, now)
        checked = _enforce_rules(job, Placement(job.id, its.to), view)
        _decide(state, Decision(now, "move", checked))
        if checked.gpus and not _gate(state, now).blocker(job):
            _start(state, job, checked, view)
        else:
            moved = job.with_suspension(replace(its, to=()))
            where = ", ".join(str(view.gpu(gpu).gpu.index) for gpu in its.to)
            note = f"could not move to GPU {where} after all: see carma why"
            state.ledger.put(moved.with_note(note))


def _start_without_gpus(state: State, now: float) -> None:
    """Start the jobs that want no GPUs, in order, as far as the host has room. Policies, which
    place jobs on GPUs, are not asked."""
    gate = _gate(state, now)
    for row in tuple(state.ledger.line_of_cpus()):
        for job in singly((row,)):
            if gate.blocker(job):
                break
            notes = () if job.attempt else job.notes
            started = start(job, job.new_attempt((), now), notes=notes)
            state.ledger.put(started)
            gate = _gate(state, now)
            state.actions.append(Launch(started))
        if gate.room.has_no_cpu:
            break


def _preempt(state: State, wish: Preemption, now: float, by: str) -> None:
    """Take a running job's GPUs back, where the settings and the job allow it."""
    job = state.ledger.jobs.get(wish.job)
    if job is None or job.state not in (JobState.STARTING, JobState.RUNNING):
        return
    allowed = suspending.way_to_preempt(state, job, now)
    suspends = state.settings.limits.preemption == "suspend"
    refusal = suspending.refusal(state, job, now) if suspends else ""
    why = wish.reason if allowed else Reason("not_preemptible", detail=refusal)
    _decide(state, Decision(now, by, Placement(job.id, reasons=(why,))))
    suspending.preempt(state, job, wish.reason.detail, now)


def _renew(state: State, now: float) -> View:
    """A view for another policy than before."""
    deciders.forget_policy(state)
    return _view(state, now)


def _enforce_rules(job: Job, placement: Placement, view: View) -> Placement:
    """The placement, or a wait with the hard rule that it would have broken."""
    if not placement.gpus:
        return placement
    chosen = placement.gpus
    right = len(chosen) == len(set(chosen)) == job.spec.gpus
    if not right or not all(gpu in view.node_of for gpu in chosen):
        answer = ", ".join(placement.gpus)
        return refuse(placement, Reason("policy_failed", detail=f"it chose {answer:.200}"))
    if placement.profiling and not view.now < placement.profiling.until < inf:
        until = placement.profiling.until
        return refuse(placement, Reason("policy_failed", detail=f"it profiles until {until}"))
    if not _splits(job, placement.accumulation):
        detail = f"it chose {placement.accumulation} parts of a batch"
        return refuse(placement, Reason("policy_failed", detail=detail))
    wanted = view.demand(job, profiling=placement.profiling is not None)
    for gpu in chosen:
        if broken := view.refusals(wanted, view.gpu(gpu)):
            return refuse(placement, broken[0])
    return placement


def _start(state: State, job: Job, placement: Placement, view: View) -> None:
    """A suspended job goes on with its attempt. Whether that is profiled, or splits its
    batches, was decided when it began."""
    gpus = placement.gpus
    job = state.ledger.jobs[job.id]
    shared = any(view.gpu(gpu).residents for gpu in gpus)
    if its := job.suspension:
        there = its.gpus if set(gpus) == set(its.gpus) else gpus
        shared = shared or job.shared
        now_on = dict(zip(its.gpus, there, strict=True))
        kernels = tuple((now_on.get(gpu, gpu), at) for gpu, at in job.kernels)
        placed = job.with_attempt(gpus=there, kernels=kernels, shared=shared)
        started = advance(placed, Paused(JobState.RESUMING, placed.current, its))
    else:
        new = job.new_attempt(
            gpus,
            view.now,
            mode=mode(job, map(view.gpu, gpus), state.settings),
            accumulation=placement.accumulation,
            profiling=placement.profiling,
            shared=shared,
        )
        # Notes made before its first attempt are about the job, so they are kept.
        notes, late = () if job.attempt else job.notes, job.awaits_estimate
        started = start(job, new, notes=notes, estimate_late=late)
    for gpu in gpus:
        for resident in state.ledger.residents(gpu):
            if not resident.shared:
                state.ledger.put(resident.with_attempt(shared=True))
    state.plans.last_placed = gpus[-1]
    state.ledger.put(started)
    state.actions.append(Resume(started) if started.suspension else Launch(started))


def _decide(state: State, new: Decision) -> None:
    old = state.plans.decisions.get(new.placement.job)
    state.plans.decisions[new.placement.job] = new
    if old is None or not old.same_story(new):
        state.news.append(new)


def _splits(job: Job, parts: int) -> bool:
    """Whether its batches may be split into so many parts: only if it declared a batch size."""
    batch = job.spec.batch_size
    return parts == 1 or (batch is not None and 1 < parts <= batch and batch % parts == 0)
