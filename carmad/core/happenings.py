"""What happened in a step, for people and programs that follow along: jobs that started, ended or
were retried, GPUs that were drained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from carmad.core.messages import DrainRequested, RequeueRequested, Step
from carmad.core.types import SENT_BACK, Cause, GpuId, Job, JobState


class Kind(StrEnum):
    SUBMITTED = "submitted"  # `count` jobs: an array is submitted as one
    HELD = "held"
    RELEASED = "released"
    STARTED = "started"  # it was given GPUs
    RUNNING = "running"  # its first kernel was seen
    LIMIT80 = "limit80"  # 80 % of its time limit have passed; only if its owner asked for it
    STOPPING = "stopping"
    RETRIED = "retried"  # an attempt failed, and the job is in the queue again
    REQUEUED = "requeued"  # it is in the queue again, by its owner or because it was preempted
    ENDED = "ended"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    DRAINED = "drained"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    kind: Kind
    job: Job | None = None  # as it was then
    gpu: GpuId | None = None
    cause: Cause | None = None  # of an end, or of what led to it
    detail: str = ""  # of a GPU: what is wrong with it, or who drained it and why
    count: int = 1


def happenings(step: Step) -> Iterator[Happening]:
    """In order. Of GPUs, only what somebody asked for: faults are in the readings."""
    at = step.events[-1].at
    known: dict[int, Job] = {job.id: job for job in step.before}
    known |= {each.job.id: each.job for each in step.events if isinstance(each, RequeueRequested)}
    arrays: dict[int, list[Job]] = {}
    for job in step.jobs:
        before = known.get(job.id)
        known[job.id] = job
        if before is not None:
            yield from _changes(before, job, at)
        elif job.spec.array:
            arrays.setdefault(job.spec.array.array, []).append(job)
        else:
            yield Happening(job.submitted_at, Kind.SUBMITTED, job)
    for tasks in arrays.values():
        yield Happening(tasks[0].submitted_at, Kind.SUBMITTED, tasks[0], count=len(tasks))
    drained = {drain.gpu: drain for drain in step.drains or ()}
    for event in step.events:
        if not isinstance(event, DrainRequested):
            continue
        if event.reason is None:
            yield Happening(event.at, Kind.RESUMED, gpu=event.gpu, detail=f"by {event.by}")
        elif event.gpu in drained:
            detail = f"by {event.by}: {event.reason}"
            yield Happening(event.at, Kind.DRAINED, gpu=event.gpu, detail=detail)


def _changes(old: Job, job: Job, at: float) -> Iterator[Happening]:
    if old.held != job.held:
        yield Happening(at, Kind.HELD if job.held else Kind.RELEASED, job)
    if job.nearing and not old.nearing:
        yield Happening(at, Kind.LIMIT80, job)
    if old.state is job.state:
        return
    match job.state:
        case JobState.STARTING:
            yield Happening(at, Kind.STARTED, job)
        case JobState.RUNNING:
            yield Happening(at, Kind.RUNNING, job)
        case JobState.STOPPING:
            yield Happening(at, Kind.STOPPING, job, cause=job.stop)
        case JobState.QUEUED | JobState.PENDING if old.holds_gpus:
            exit = job.attempts[-1].exit
            cause = exit.cause if exit else None
            kind = Kind.REQUEUED if cause in SENT_BACK else Kind.RETRIED
            yield Happening(at, kind, job, cause=cause)
        case JobState.QUEUED | JobState.PENDING if old.ended:
            yield Happening(at, Kind.REQUEUED, job)
        case _ if job.ended:
            yield Happening(at, Kind.ENDED, job, cause=job.exit.cause if job.exit else None)
