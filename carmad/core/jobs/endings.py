"""Decides what the end of an attempt means for its job, and carries that out."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Literal

from carmad.core.gpus.gpu import GpuSample, held_mib
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import FOR_GOOD, SENT_BACK, Cause, Exit, GpuId, JobId
from carmad.core.jobs.job import Job, Retry, requeue, stopping
from carmad.core.jobs.knowledge import ask_again, end
from carmad.core.jobs.states import EndState, JobState
from carmad.core.messages import Exited
from carmad.core.placing.decision import DECIDE, describe
from carmad.core.rules.promises import STEP_MIB
from carmad.core.state import State
from carmad.readable import gib

SIGINT = 2
HUNG = "it was ended, as it hung after an out-of-memory error"
BY_CTRL_C = "interrupted with Ctrl-C at its terminal"
MOST_UNSTARTED = 12  # attempts in a row, each of which the server had ten seconds to start
FULL = 0.03  # a GPU with a smaller share of its memory free has no room for anything


def on_exited(state: State, event: Exited) -> None:
    """Requeue the attempt's job, or end it. Stale and repeated reports change nothing."""
    job = state.ledger.jobs.get(event.job)
    if job is None or not job.lives or job.attempt != event.attempt:
        return
    stop = event.stop  # the disk was full when it was stopped
    if job.spec.interactive and job.stop is None and _was_interrupted(event.exit):
        stop = Cause.CANCELLED
        event = replace(event, exit=replace(event.exit, evidence=BY_CTRL_C))
    if event.exit.cause is Cause.FAILURE and (failure := state.fleet.failure(job)):
        evidence = "; ".join(filter(None, (failure, event.exit.evidence)))
        event = replace(event, exit=replace(event.exit, evidence=evidence))
    if stop and job.stop not in FOR_GOOD:
        job = stopping(job, stop)
        state.ledger.put(job)
    retries = Retries(
        lambda job, exit: state.calls.make(DECIDE, lambda: state.recovery.decide(job, exit)),
        state.settings.recovery.retries,
        state.settings.monitor.external_mib,
        state.fleet.usable(job.spec),
    )
    beside = state.fleet.beside(job)
    its = ending(job, event, beside, retries, partial(_name, state))
    if its.state is not JobState.QUEUED:
        end(state, job, its.state, its.exit, its.at)
        if its.state is JobState.SUCCEEDED:
            state.actions += ask_again(state.ledger.alike(job.group))
        return
    again = job.stop is Cause.REQUEUED
    barred = its.exit.evidence if its.exit.cause is Cause.NO_ACCOUNT else ""
    state.ledger.put(
        requeue(
            state.fleet.with_usage(job),
            JobState.PENDING if job.estimate_late else JobState.QUEUED,
            replace(its.exit, tail=()),
            its.at,
            retry=None if again else its.retry,
            requeued_after=job.attempt if again else job.requeued_after,
            overtaken=0,
            held=job.held or its.exit.cause is Cause.NO_ACCOUNT,
            barred=barred,
        )
    )


def _name(state: State, id: JobId) -> str:
    job = state.ledger.jobs.get(id)
    return label(job) if job else str(id)


@dataclass(frozen=True, slots=True)
class Ending:
    """What follows the end of an attempt."""

    state: EndState | Literal[JobState.QUEUED]  # QUEUED: it is requeued
    exit: Exit
    at: float
    retry: Retry | None = None  # constraints on its next attempt


@dataclass(frozen=True, slots=True)
class Retries:
    """Whether a job that failed is retried; after running out of memory, also where it may run."""

    decide: Callable[[Job, Exit], Retry | None]  # the recovery: foreign code, may raise
    most: int
    external_mib: int  # external processes that hold more than this count as neighbours
    usable: Set[GpuId]  # GPUs that it might get; empty while none are known


def ending(
    job: Job,
    event: Exited,
    beside: Sequence[GpuSample],
    retries: Retries,
    name: Callable[[JobId], str] = str,
) -> Ending:
    """`beside`: the readings that show who held memory beside the job, see `Fleet.beside`. `name`:
    what people call a job."""
    exit, at = event.exit, min(event.at, event.ended_at or event.at)
    if job.stop is Cause.GPU_OOM and exit.cause not in (Cause.SUCCESS, Cause.GPU_OOM):
        exit = replace(exit, cause=Cause.GPU_OOM, evidence=HUNG)
    if exit.cause is Cause.GPU_OOM:
        exit = _explain_oom(job, exit, beside, name)
    if job.stop is Cause.UNRESTORED and not job.spec.requeue:
        return Ending(JobState.FAILED, replace(exit, cause=Cause.UNRESTORED), at)
    again = job.stop is Cause.REQUEUED  # even if it ended well when it was told to stop
    if job.stop in SENT_BACK and (again or exit.cause is not Cause.SUCCESS):
        return _send_back(job, exit, at)
    if job.stop in FOR_GOOD:
        exit = replace(exit, cause=job.stop)
        if job.stop is Cause.CANCELLED:
            return Ending(JobState.CANCELLED, exit, at)
        return Ending(JobState.TIMED_OUT, exit, at)
    may_repeat = job.spec.requeue or not job.spec.interactive  # who would run it again?
    match exit.cause:
        case Cause.SUCCESS:
            return Ending(JobState.SUCCEEDED, exit, at)
        case Cause.GPU_OOM if job.spec.gpus:
            external = max((_external_mib(reading) for reading in beside), default=0)
            if external > retries.external_mib:
                job = job.with_attempt(shared=True)
            if may_repeat and not exit.left and (retry := _decide_retry(job, exit, retries)):
                return Ending(JobState.QUEUED, exit, at, retry)
            return Ending(JobState.OUT_OF_MEMORY, exit, at)
        case Cause.NO_ACCOUNT:
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case Cause.UNSTARTED if may_repeat and _count_unstarted(job) < MOST_UNSTARTED:
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case Cause.FAILURE if may_repeat and not exit.left and _is_to_repeat(job, exit, retries):
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case Cause.LOST if job.spec.requeue and not (exit.left or _was_lost_before(job)):
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case _:
            return Ending(JobState.FAILED, exit, at)


def _was_interrupted(exit: Exit) -> bool:
    """By SIGINT, or with the exit code that programs which catch it have by custom."""
    how = exit.signal, (exit.code or 0) - 128
    return exit.cause is Cause.FAILURE and SIGINT in how


def _send_back(job: Job, exit: Exit, at: float) -> Ending:
    """Requeue a job that was stopped for that, unless it was preempted and its time limit has
    expired."""
    limit_s = job.spec.enforced_limit_s
    if job.stop is Cause.PREEMPTED and limit_s is not None and job.attained_s(at) >= limit_s:
        return Ending(JobState.TIMED_OUT, replace(exit, cause=Cause.TIME_LIMIT), at)
    if exit.cause is not Cause.GPU_OOM and job.stop:
        exit = replace(exit, cause=job.stop)
    if exit.left:
        return Ending(JobState.FAILED, exit, at)
    return Ending(JobState.QUEUED, exit, at, job.retry)


def _explain_oom(
    job: Job, exit: Exit, beside: Sequence[GpuSample], name: Callable[[JobId], str]
) -> Exit:
    """With the job's own limit, if it ran into that, or else with who held memory beside it."""
    limit_mib = next(filter(None, (_met_limit(job, exit, each) for each in beside)), None)
    if limit_mib is None:
        return replace(exit, neighbours=_neighbours(job, beside, name))
    met = f"it met its own limit of {gib(limit_mib)}, as others were promised the rest"
    evidence = f"{met}: {exit.evidence}" if exit.evidence else met
    return replace(exit, limit_mib=limit_mib, evidence=evidence)


def _met_limit(job: Job, exit: Exit, reading: GpuSample) -> int | None:
    """The job's limit on this GPU, if that is lower than what external processes leave and the job
    wanted more, or the GPU had room for what it wanted. A reading may be a period old."""
    limits = {its.gpu: its.most_mib for its in job.current.memory_limits}
    most_mib = limits.get(reading.gpu)
    free_mib = reading.memory_free_mib or 0
    all_mib = free_mib + (reading.memory_used_mib or 0)
    if most_mib is None or most_mib > all_mib - _external_mib(reading) - STEP_MIB:
        return None
    tried_mib = exit.tried_mib or 1
    over = held_mib(job.id, reading) + tried_mib > most_mib
    return most_mib if over or free_mib > max(tried_mib, FULL * all_mib) else None


def _neighbours(
    job: Job, beside: Sequence[GpuSample], name: Callable[[JobId], str]
) -> tuple[str, ...]:
    """Who else held memory, as text. Jobs that did not overlap with this one do not count."""
    found = []
    for reading in beside:
        for p in reading.processes:
            if p.memory_mib and (p.job is None or (p.job != job.id and job.shared)):
                who = f"job {name(p.job)}" if p.job else f"pid {p.pid} ({p.user or '?'})"
                found.append(f"{who} held {p.memory_mib} MiB")
    return tuple(found)


def _external_mib(reading: GpuSample) -> int:
    """Memory held by external processes, as `gpuview.free_memory` counts it."""
    if any(p.memory_mib is None for p in reading.processes):
        return 0  # this GPU does not report memory per process
    owned = sum(p.memory_mib or 0 for p in reading.processes if p.job)
    return (reading.memory_used_mib or 0) - owned


def _decide_retry(job: Job, exit: Exit, retries: Retries) -> Retry | None:
    ooms = sum(1 for failure in job.failures if failure.cause is Cause.GPU_OOM)
    if ooms >= retries.most:
        return None
    try:
        retry = retries.decide(job, exit)
    except Exception as error:  # noqa: BLE001 - foreign code
        why = f"the recovery failed, so the job is retried alone: it raised {describe(error)}"
        return Retry(why, exclusive=True)
    return retry and retry.placeable(job.spec.gpus, retries.usable)


def _is_to_repeat(job: Job, exit: Exit, retries: Retries) -> bool:
    """Whether its owner wants it to run again after such an end (`--retry-on`)."""
    code = exit.code if exit.signal is None else 128 + exit.signal
    if str(code) not in (job.spec.retry_on or "").split(","):
        return False
    return sum(failure.cause is Cause.FAILURE for failure in job.failures) < retries.most


def _count_unstarted(job: Job) -> int:
    """How many of its last attempts never ran, in a row."""
    unstarted = (failure.cause is Cause.UNSTARTED for failure in reversed(job.failures))
    return sum(takewhile(bool, unstarted))


def _was_lost_before(job: Job) -> bool:
    return any(failure.cause is Cause.LOST for failure in job.failures)
