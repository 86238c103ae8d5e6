"""What the end of an attempt means for its job: takes the attempt and evidence, returns an
`Ending`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from carmad.core.asking import said
from carmad.core.line import never_satisfied
from carmad.core.messages import Exited
from carmad.core.types import (
    FOR_GOOD,
    SENT_BACK,
    Cause,
    Exit,
    GpuId,
    GpuSample,
    Job,
    JobId,
    JobState,
    Retry,
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What becomes of a job whose attempt is over."""

    state: JobState  # QUEUED: it is requeued
    exit: Exit
    at: float
    retry: Retry | None = None  # constraints on its next attempt


@dataclass(frozen=True, slots=True)
class Trying:
    """Whether a job that ran out of memory is retried, and where it may run."""

    decide: Callable[[Job, Exit], Retry | None]  # the recovery: foreign code, may raise
    retries: int
    external_mib: int  # external processes that hold more than this count as neighbours
    usable: Set[GpuId]  # GPUs that it might get; empty while none are known


def ending(job: Job, event: Exited, beside: Sequence[GpuSample], trying: Trying) -> Ending:
    """`beside`: the readings that show who held memory beside the job, see `Fleet.beside`."""
    exit, at = event.exit, min(event.at, event.ended_at or event.at)
    if exit.cause is Cause.GPU_OOM:
        exit = replace(exit, neighbours=_neighbours(job, beside))
    if job.stop in SENT_BACK and exit.cause is not Cause.SUCCESS:
        return _sent_back(job, exit, at)
    if job.stop in FOR_GOOD:
        cancelled = job.stop is Cause.CANCELLED
        state = JobState.CANCELLED if cancelled else JobState.TIMED_OUT
        return Ending(state, replace(exit, cause=job.stop), at)
    match exit.cause:
        case Cause.SUCCESS:
            return Ending(JobState.SUCCEEDED, exit, at)
        case Cause.GPU_OOM if job.gpus:
            external = max((_external_mib(reading) for reading in beside), default=0)
            if external > trying.external_mib:
                job = job.with_attempt(shared=True)
            again = job.spec.requeue or not job.spec.interactive  # who would run it again?
            if again and not exit.left and (retry := _retried(job, exit, trying)):
                return Ending(JobState.QUEUED, exit, at, retry)
            return Ending(JobState.OUT_OF_MEMORY, exit, at)
        case Cause.NO_ACCOUNT:
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case Cause.LOST if job.spec.requeue and not (exit.left or _lost_before(job)):
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case _:
            return Ending(JobState.FAILED, exit, at)


def _sent_back(job: Job, exit: Exit, at: float) -> Ending:
    """Requeue a job that was preempted or profiled, unless its time limit has expired."""
    limit_s = None if job.spec.slurm_job else job.spec.time_limit_s
    if job.stop is Cause.PREEMPTED and limit_s is not None and job.attained_s(at) >= limit_s:
        return Ending(JobState.TIMED_OUT, replace(exit, cause=Cause.TIME_LIMIT), at)
    if exit.cause is not Cause.GPU_OOM and job.stop:
        exit = replace(exit, cause=job.stop)
    if exit.left:
        return Ending(JobState.FAILED, exit, at)
    return Ending(JobState.QUEUED, exit, at, job.retry)


def _neighbours(job: Job, beside: Sequence[GpuSample]) -> tuple[str, ...]:
    """Who else held memory, as text. Jobs that did not overlap with this one do not count."""
    held = []
    for reading in beside:
        for p in reading.processes:
            if p.memory_mib and (p.job is None or (p.job != job.id and job.shared)):
                who = f"job {p.job}" if p.job else f"pid {p.pid} ({p.user or '?'})"
                held.append(f"{who} held {p.memory_mib} MiB")
    return tuple(held)


def _external_mib(reading: GpuSample) -> int:
    """Memory held by external processes, as `gpuview.free_memory` counts it."""
    if any(p.memory_mib is None for p in reading.processes):
        return 0  # this GPU does not report memory per process
    owned = sum(p.memory_mib or 0 for p in reading.processes if p.job)
    return (reading.memory_used_mib or 0) - owned


def _retried(job: Job, exit: Exit, trying: Trying) -> Retry | None:
    ooms = sum(1 for failure in job.failures if failure.cause is Cause.GPU_OOM)
    if ooms >= trying.retries:
        return None
    try:
        retry = trying.decide(job, exit)
    except Exception as error:  # noqa: BLE001 - foreign code
        why = f"the recovery failed, so the job is retried alone: it raised {said(error)}"
        return Retry(why, exclusive=True)
    return retry and placeable(retry, job.spec.gpus, trying.usable)


def placeable(retry: Retry, gpus: int, usable: Set[GpuId]) -> Retry:
    """Exclusive instead if `avoid` leaves too few GPUs; unchanged while no GPU is known."""
    if usable and len(usable - set(retry.avoid)) < gpus:
        return replace(retry, avoid=(), exclusive=True)
    return retry


def _lost_before(job: Job) -> bool:
    return any(failure.cause is Cause.LOST for failure in job.failures)


def in_vain(job: Job, ended: Mapping[JobId, JobState]) -> Exit | None:
    """The exit of a job whose dependency can no longer be met; None if it still can."""
    culprit = never_satisfied(job, ended)
    if culprit is None or job.holds_gpus:
        return None
    return Exit(Cause.DEPENDENCY, evidence=f"job {culprit} ended as {ended[culprit]}")
