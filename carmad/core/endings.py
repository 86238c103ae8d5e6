"""What the end of an attempt means: evidence and attempt in, `Ending` out."""

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

    state: JobState  # QUEUED: it goes back in line
    exit: Exit
    at: float
    retry: Retry | None = None  # how its next attempt is to be placed


@dataclass(frozen=True, slots=True)
class Trying:
    """Whether a job that ran out of memory is tried again, and where it can be."""

    decide: Callable[[Job, Exit], Retry | None]  # the recovery: foreign code, may raise
    retries: int
    external_mib: int  # processes of no job that hold more than this count as company
    usable: Set[GpuId]  # GPUs that it might be given; empty while none are known


def ending(job: Job, event: Exited, beside: Sequence[GpuSample], trying: Trying) -> Ending:
    """`beside`: what shows who held memory beside the job, see `Fleet.beside`."""
    exit, at = event.exit, min(event.at, event.ended_at or event.at)
    if exit.cause is Cause.GPU_OOM:
        exit = replace(exit, neighbours=_neighbours(job, beside))
    if job.stop in SENT_BACK and exit.cause is not Cause.SUCCESS:
        return _sent_back(job, exit, at)
    if job.stop in FOR_GOOD:
        timed_out = job.stop is Cause.TIME_LIMIT
        state = JobState.TIMED_OUT if timed_out else JobState.CANCELLED
        return Ending(state, replace(exit, cause=job.stop), at)
    match exit.cause:
        case Cause.SUCCESS:
            return Ending(JobState.SUCCEEDED, exit, at)
        case Cause.GPU_OOM:
            external = max((_external_mib(reading) for reading in beside), default=0)
            if external > trying.external_mib:
                job = job.with_attempt(shared=True)
            if retry := _retried(job, exit, trying):
                return Ending(JobState.QUEUED, exit, at, retry)
            return Ending(JobState.OUT_OF_MEMORY, exit, at)
        case Cause.LOST if job.spec.requeue and not _lost_before(job):
            return Ending(JobState.QUEUED, exit, at, job.retry)
        case _:
            return Ending(JobState.FAILED, exit, at)


def _sent_back(job: Job, exit: Exit, at: float) -> Ending:
    """It goes on in its turn, or begins anew after a profiling run; its time limit counts on."""
    limit_s = job.spec.time_limit_s
    if job.stop is Cause.PREEMPTED and limit_s is not None and job.attained_s(at) >= limit_s:
        return Ending(JobState.TIMED_OUT, replace(exit, cause=Cause.TIME_LIMIT), at)
    if exit.cause is not Cause.GPU_OOM and job.stop:
        exit = replace(exit, cause=job.stop)
    return Ending(JobState.QUEUED, exit, at, job.retry)


def _neighbours(job: Job, beside: Sequence[GpuSample]) -> tuple[str, ...]:
    """Who else held memory, for people. A job that shared nothing may follow one that is gone."""
    held = []
    for reading in beside:
        for p in reading.processes:
            if p.memory_mib and (p.job is None or (p.job != job.id and job.shared)):
                who = f"job {p.job}" if p.job else f"pid {p.pid} ({p.user or '?'})"
                held.append(f"{who} held {p.memory_mib} MiB")
    return tuple(held)


def _external_mib(reading: GpuSample) -> int:
    """Held by processes of no job, as `gpuview.free_memory` counts it."""
    if any(p.memory_mib is None for p in reading.processes):
        return 0  # this GPU does not say who holds what
    owned = sum(p.memory_mib or 0 for p in reading.processes if p.job)
    return (reading.memory_used_mib or 0) - owned


def _retried(job: Job, exit: Exit, trying: Trying) -> Retry | None:
    ooms = sum(1 for failure in job.failures if failure.cause is Cause.GPU_OOM)
    if ooms >= trying.retries:
        return None
    try:
        retry = trying.decide(job, exit)
    except Exception as error:  # noqa: BLE001 - foreign code
        why = f"the recovery failed, tried next alone: it raised {said(error)}"
        return Retry(why, exclusive=True)
    return retry and placeable(retry, job.spec.gpus, trying.usable)


def placeable(retry: Retry, gpus: int, usable: Set[GpuId]) -> Retry:
    """Exclusive instead of elsewhere, if there is no elsewhere; while no GPU is known, as it is."""
    if usable and len(usable - set(retry.avoid)) < gpus:
        return replace(retry, avoid=(), exclusive=True)
    return retry


def _lost_before(job: Job) -> bool:
    return any(failure.cause is Cause.LOST for failure in job.failures)


def in_vain(job: Job, ended: Mapping[JobId, JobState]) -> Exit | None:
    """The end of a job whose dependency can no longer be met; None if it still can."""
    culprit = never_satisfied(job, ended)
    if culprit is None or job.holds_gpus:
        return None
    return Exit(Cause.DEPENDENCY, evidence=f"job {culprit} ended as {ended[culprit]}")
