"""What people ask for: users of their jobs and processes, and administrators of the server."""

from __future__ import annotations

from dataclasses import replace

from carmad.core.gpus.gpu import Drain
from carmad.core.jobs import control, suspending
from carmad.core.jobs.attempt import Attempt, Cause, Exit, JobId
from carmad.core.jobs.job import Job, advance
from carmad.core.jobs.knowledge import dependency_exit, end, with_history
from carmad.core.jobs.ledger import ENDED_REMEMBERED
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.states import Active, JobState, Waiting
from carmad.core.messages import (
    CARMAD,
    Adopted,
    CancelRequested,
    DrainRequested,
    EstimateMemory,
    HoldRequested,
    Launch,
    LimitRequested,
    RequeueRequested,
    Reserved,
    Submitted,
    Unreserved,
    UpdateRequested,
)
from carmad.core.rules.limits import Limit
from carmad.core.state import State
from carmad.options import OPTIONS


def on_submitted(state: State, event: Submitted) -> None:
    state.shares.note_groups(event.specs[0].owner, event.groups, event.at)
    id, pending = event.first, Waiting(JobState.PENDING)
    for spec in event.specs:
        job = Job(id, spec, pending, event.at, held=event.held, group=group(spec))
        job = with_history(state, job, event.at)
        id = JobId(id + job.tasks)
        if job.id not in state.counted:  # after a failed commit, the same event comes again
            state.counted[job.id] = None
            if len(state.counted) > ENDED_REMEMBERED:
                state.counted.popitem(last=False)
            if spec.gpus:
                state.history.note_submission(event.at, spec.gpus * job.tasks, job.tasks)
        state.ledger.put(job)
        if why := dependency_exit(job, state.ledger.ended):
            end(state, job, JobState.CANCELLED, why, event.at)
        else:
            state.actions.append(EstimateMemory(job))


def on_adopted(state: State, event: Adopted) -> None:
    """No job comes of it if the process is not where a job may be."""
    beside = [job for gpu in event.gpus for job in state.ledger.residents(gpu)]
    free = event.gpus and state.fleet.gpus.keys() >= set(event.gpus)
    if not free or any(job.exclusive or job.spec.process == event.spec.process for job in beside):
        return
    spec = event.spec
    its = Attempt(1, event.gpus, event.mode, event.at, shared=bool(beside))
    job = Job(event.id, spec, Active(JobState.STARTING, its), event.at, group=group(spec))
    state.ledger.put(replace(job, estimate=spec.declared))
    for resident in beside:
        state.ledger.put(resident.with_attempt(shared=True))
    state.actions.append(Launch(state.ledger.jobs[event.id]))


def on_cancel_requested(state: State, event: CancelRequested) -> None:
    exit = Exit(Cause.CANCELLED, evidence=f"cancelled by {event.by}")
    for job in state.named(event.job, event.more):
        if not control.cancel(job).acts:
            continue
        if job.lives:
            state.stop(job, Cause.CANCELLED)
        else:
            end(state, job, JobState.CANCELLED, exit, event.at)


def on_hold_requested(state: State, event: HoldRequested) -> None:
    for job in state.named(event.job, event.more):
        if control.hold(job, event.held).acts:
            barred = job.barred if event.held else ""
            state.ledger.put(replace(job, held=event.held, barred=barred))


def on_update_requested(state: State, event: UpdateRequested) -> None:
    for job in state.named(event.job, event.more):
        _update(state, job, event)


def _update(state: State, job: Job, event: UpdateRequested) -> None:
    verdict, spec = control.update(job, event, state.ledger.jobs, event.at)
    if not verdict.acts:
        return
    anew = any(OPTIONS[name].memory for name in event.names) and not job.lives
    job = replace(job, spec=spec, group=group(spec))
    if anew and job.state is JobState.QUEUED:
        job = advance(job, Waiting(JobState.PENDING))
    if anew:
        job = replace(job, estimate=None, estimate_late=False, crash="")
        job = with_history(state, job, event.at)
        state.actions.append(EstimateMemory(job))
    state.ledger.put(job)
    if event.by != spec.user:
        state.ledger.note(job.id, f"{event.by} {verdict.words}")
    if why := dependency_exit(job, state.ledger.ended):
        end(state, state.ledger.jobs.rows[job.id], JobState.CANCELLED, why, event.at)


def on_requeue_requested(state: State, event: RequeueRequested) -> None:
    job = event.job
    jobs = state.ledger.jobs
    if (live := jobs.get(job.id)) and live.lives:
        if control.requeue(live, {}).acts:
            state.stop(live, Cause.REQUEUED)
        return
    latest = state.ledger.ended
    ended = {id: how for id, how in event.ended if id not in jobs}
    ended |= {one.job: latest[one.job] for one in job.spec.after if one.job in latest}
    if next(jobs.within(job.ids), None) or not control.requeue(job, ended).acts:
        return
    again = advance(
        job,
        Waiting(JobState.QUEUED if job.estimate else JobState.PENDING),
        earlier=job.ended_attempts,
        retry=None,
        overtaken=0,
        requeued_after=job.attempt,
        estimate_late=False,
    )
    again = with_history(state, again, event.at)
    state.ledger.ended.forget(again.ids)
    state.ledger.put(again)
    if again.state is JobState.PENDING:
        state.actions.append(EstimateMemory(again))


# -- of the server


def on_drain_requested(state: State, event: DrainRequested) -> None:
    fleet = state.fleet
    if event.reason is None:
        fleet.drain(event.gpu, None)
    elif event.by == CARMAD and event.gpu in fleet.drains:
        return
    elif event.gpu in fleet.gpus:
        fleet.drain(event.gpu, Drain(event.gpu, event.reason, event.by, event.at))
        if event.move:
            suspending.empty_gpu(state, event)
    state.has_new_drains = True


def on_limit_requested(state: State, event: LimitRequested) -> None:
    subject = event.limit.subject
    old = state.limits.pop(subject, None)
    if old is None or old.uid not in (None, event.limit.uid):  # it was an earlier account's
        old = Limit(subject)
    new = event.limit if event.clear else event.limit.over(old)
    if not new.empty:
        state.limits[subject] = new
    state.limited.append(new)


def on_reserved(state: State, event: Reserved) -> None:
    state.has_new_reservations |= state.fleet.reserve(event.reservation)


def on_unreserved(state: State, event: Unreserved) -> None:
    state.has_new_reservations |= state.fleet.unreserve(event.id)
