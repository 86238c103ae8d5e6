"""Suspending a running job, and what comes of it. Whether it can be says `control`.

A suspended job keeps its processes and its place on the host, and waits in line for GPUs like any
other job; policies place it, and the hard rules say where it can return (`view`). It is held
while its owner wants it suspended.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Literal

from carmad.core.jobs import control
from carmad.core.jobs.attempt import Cause, GpuId, Suspension
from carmad.core.jobs.control import OVERSTAYED, host_mib, never, overstayed_s, unfit
from carmad.core.jobs.job import Job, Retry, advance
from carmad.core.jobs.states import Active, JobState, Paused
from carmad.core.messages import (
    DrainRequested,
    MoveRequested,
    Resumed,
    ResumeRequested,
    Suspend,
    Suspended,
    SuspendRequested,
)
from carmad.core.state import State

AGAIN_AFTER_S, AGAIN_AFTER_AT_MOST_S = 10.0, 600.0  # a failure to resume
MOST_HUNG = 2  # attempts to resume a job that the driver does not answer, before its owner decides


def host_room_mib(state: State) -> int:
    return control.host_room_mib(state.ledger.suspended.values(), state.settings)


def largest(state: State) -> Job | None:
    """The suspended job that takes most of the host's memory."""
    return max(state.ledger.suspended.values(), key=host_mib, default=None)


def refusal(state: State, job: Job, now: float, asked: bool = False) -> str:
    """Why the job cannot be suspended now; "" if it can. `asked`: see above."""
    suspended = state.ledger.suspended.values()
    return control.refusal(job, state.fleet.memory_of(job), suspended, state.settings, now, asked)


def suspend(
    state: State,
    job: Job,
    why: str,
    now: float,
    held: bool = False,
    after: Literal["", "elsewhere", "alone"] = "",
    to: tuple[GpuId, ...] = (),
) -> None:
    """Begin to suspend a job for which there is no `refusal`. `held`: until somebody requests
    that it resumes; `after`, `to`: see `Suspension`."""
    its, holds = job.current, state.fleet.memory_of(job)
    gpus = [state.fleet.gpus[gpu] for gpu in job.gpus]
    nodes = {gpu.node for gpu in gpus}
    node = nodes.pop() if len(nodes) == 1 else ""
    mib = max(holds.values()), sum(holds.values())
    its = replace(its, suspended_at=(*its.suspended_lately(now), now))
    gone = Suspension(now, why, job.gpus, gpus[0].name, node, *mib, after, to)
    changed = advance(job, Paused(JobState.SUSPENDING, its, gone), held=held)
    state.ledger.put(changed)
    state.actions.append(Suspend(changed))


# -- for others


def way_to_preempt(
    state: State, job: Job, now: float, room: bool = False
) -> Literal["suspend", "requeue"] | None:
    """How its GPUs can be taken back now, by `limits.preemption`; None: not at all. `room`: if
    the host had room."""
    preemption = state.settings.limits.preemption
    if preemption == "suspend":
        fit = room and not unfit(job, state.fleet.memory_of(job), state.settings, now)
        if fit or not refusal(state, job, now):
            return "suspend"
        if not (job.spec.requeue_ok and never(job, state.settings)):
            return None
    in_use = job.state in (JobState.STARTING, JobState.RUNNING)
    return "requeue" if preemption and in_use and job.spec.requeue else None


def preempt(state: State, job: Job, why: str, now: float) -> None:
    """Take its GPUs back, if there is a way. It waits in line from then on."""
    match way_to_preempt(state, job, now):
        case "suspend":
            suspend(state, job, why, now)
        case "requeue":
            state.stop(job, Cause.PREEMPTED)


# -- those that stay suspended for long


def expire_suspended(state: State, now: float) -> None:
    """Stop those that somebody has left suspended until their time limits have expired."""
    note = f"{OVERSTAYED}: its time limit went on"
    for job in tuple(state.ledger.suspended.values()):
        over_s = overstayed_s(job, state.settings, now)
        if over_s and job.attained_s(now) + over_s >= (job.spec.time_limit_s or inf):
            state.stop(job.with_note(note), Cause.TIME_LIMIT)


def make_room(state: State, mib: int, whose: str, now: float) -> None:
    """Requeue those that have been left suspended for too long, the longest first, until the
    host has room for so much; nobody if that is not enough."""
    suspended = state.ledger.suspended.values()
    going = [job for job in suspended if job.state is JobState.STOPPING]
    left_s = {job.id: overstayed_s(job, state.settings, now) for job in suspended}
    able = [job for job in suspended if left_s[job.id] and job.spec.requeue]
    able.sort(key=lambda job: -left_s[job.id])
    short_mib = mib - host_room_mib(state) - sum(map(host_mib, going))
    chosen: list[Job] = []
    while able and short_mib > 0:
        chosen.append(able.pop(0))
        short_mib -= host_mib(chosen[-1])
    if short_mib > 0:
        return
    note = f"{OVERSTAYED}, and {whose} needed the host's memory: `carma release` starts it anew"
    for job in chosen:
        state.stop(job.with_note(note), Cause.PREEMPTED)


# -- what owners ask for


def on_suspend_requested(state: State, event: SuspendRequested) -> None:
    for job in state.named(event.job, event.more):
        if not control.suspend(job, refusal(state, job, event.at, asked=True)).acts:
            continue
        if job.state is JobState.RUNNING:
            why = f"suspended by {event.by}"
            suspend(state, job, why, event.at, held=True)
        else:
            state.ledger.put(_with_hold(job, True, event.at))


def on_resume_requested(state: State, event: ResumeRequested) -> None:
    for job in state.named(event.job, event.more):
        if control.resume(job).acts:
            state.ledger.put(_with_hold(job, False, event.at))


def on_move_requested(state: State, event: MoveRequested) -> None:
    job = state.ledger.jobs.get(event.job)
    gpus = [state.fleet.gpus[gpu] for gpu in event.gpus if gpu in state.fleet.gpus]
    if job and control.move(job, gpus, refusal(state, job, event.at), state.settings).acts:
        suspend(state, job, f"moved by {event.by}", event.at, to=event.gpus)


def empty_gpu(state: State, event: DrainRequested) -> None:
    """Let the jobs on a drained GPU go elsewhere, as far as they can."""
    why = f"GPU {state.fleet.gpus[event.gpu].index} is drained: {event.reason}"
    for job in state.ledger.residents(event.gpu):
        if state.settings.suspend.moves and not refusal(state, job, event.at):
            suspend(state, job, why, event.at)


# -- what came of it


def on_suspended(state: State, event: Suspended) -> None:
    job = _find(state, event, JobState.SUSPENDING)
    if job is None:
        return
    if event.lost:
        _lose(state, job, event.why)
    elif event.why:
        state.ledger.put(
            replace(_on_gpus(job, event.at), held=False, unsuspendable=event.why).with_note(
                f"cannot be suspended: {event.why}"
            )
        )
    else:
        retry = _retry(state, job)
        state.ledger.put(replace(_suspended(job), retry=retry))


def on_resumed(state: State, event: Resumed) -> None:
    job = _find(state, event, JobState.RESUMING)
    if job is None:
        return
    if event.lost:
        _lose(state, job, event.why)
    else:
        new = _again_later(job, event) if event.why else _on_gpus(job, event.at)
        state.ledger.put(new)


def _retry(state: State, job: Job) -> Retry | None:
    its = job.suspension
    if not its or not its.after:
        return job.retry
    tied = not state.settings.suspend.moves or not its.node  # to the GPUs that it had
    if its.after == "alone" or tied:
        return Retry(its.why, exclusive=True)
    retry = Retry(its.why, avoid=its.gpus)
    return retry.placeable(job.spec.gpus, state.fleet.usable(job.spec))


def _find(state: State, event: Suspended | Resumed, its: JobState) -> Job | None:
    job = state.ledger.holders.get(event.job)
    return job if job and job.attempt == event.attempt and job.state is its else None


def _lose(state: State, job: Job, why: str) -> None:
    note = f"its GPU memory could not be brought back: {why}"
    state.stop(job.with_note(note), Cause.UNRESTORED)


def _on_gpus(job: Job, now: float) -> Job:
    """The job runs again, or still."""
    assert job.suspension
    return advance(job, Active(JobState.RUNNING, job.current.resumed(job.suspension, now)))


def _suspended(job: Job) -> Job:
    assert job.suspension
    return advance(job, Paused(JobState.SUSPENDED, replace(job.current, gpus=()), job.suspension))


def _with_hold(job: Job, held: bool, now: float) -> Job:
    its = job.suspension
    return replace(job.with_suspension(its.parked(held, now)) if its else job, held=held)


def _again_later(job: Job, event: Resumed) -> Job:
    """Suspended as before, for a while that doubles with each failure."""
    its = job.suspension
    assert its
    wait_s = min(AGAIN_AFTER_S * 2**its.failures, AGAIN_AFTER_AT_MOST_S)
    hung = its.hung + event.hung
    later = replace(its, failures=its.failures + 1, again_at=event.at + wait_s, hung=hung)
    job = _suspended(job.with_suspension(later))
    note = f"could not resume: {event.why}"
    if event.hung and hung % MOST_HUNG == 0:  # it keeps GPUs and a thread from others
        note += f"; after {MOST_HUNG} such attempts it stays suspended until `carma resume`"
        job = _with_hold(job, True, event.at)
    return job.with_note(note)
