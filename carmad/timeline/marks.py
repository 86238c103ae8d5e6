"""What is marked in timelines: what happened on a GPU, and when."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from carmad.core.happenings import Happening
from carmad.core.happenings import Kind as Happened
from carmad.core.jobs.attempt import Cause, GpuId, JobId
from carmad.core.jobs.states import JobState


class Kind(StrEnum):
    STARTED = "started"  # a job was placed there
    RUNNING = "running"  # its first kernel was seen
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OOM = "oom"  # it ran out of GPU memory: for good, or to be retried
    RETRIED = "retried"  # it failed in another way, and is in the queue again
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    SLOWED = "slowed"  # it reported longer steps beside another job
    RISKY = "risky"  # the GPU was refused to it for its load; at most once a minute
    WARNED = "warned"
    DRAINED = "drained"
    RESUMED = "resumed"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    EXTERNAL = "external"


_OF_GPUS = {
    Happened.WARNED: Kind.WARNED,
    Happened.DRAINED: Kind.DRAINED,
    Happened.RESUMED: Kind.RESUMED,
    Happened.GPU_LOST: Kind.GPU_LOST,
    Happened.GPU_BACK: Kind.GPU_BACK,
    Happened.EXTERNAL: Kind.EXTERNAL,
}
_ENDS = {
    JobState.SUCCEEDED: Kind.SUCCEEDED,
    JobState.FAILED: Kind.FAILED,
    JobState.CANCELLED: Kind.CANCELLED,
    JobState.TIMED_OUT: Kind.TIMED_OUT,
    JobState.OUT_OF_MEMORY: Kind.OOM,
}


class Mark(NamedTuple):
    at: float
    kind: str  # a `Kind`; a later version may have written others
    job: JobId | None = None
    text: str = ""


def marks(happening: Happening) -> Iterator[tuple[GpuId, Mark]]:
    """On the GPUs that it concerns."""
    at, job = happening.at, happening.job
    if job is None:
        if happening.gpu is not None and (kind := _OF_GPUS.get(happening.kind)):
            yield happening.gpu, Mark(at, kind, None, happening.detail)
        return
    its = _kind(happening)
    if its is not None and job.attempts:
        for gpu in job.gpus or (job.attempts[-1].gpus if not job.ended else ()):
            yield gpu, Mark(at, its, job.id)


def _kind(happening: Happening) -> Kind | None:
    """Of what happened to a job, if that is shown."""
    job, cause = happening.job, happening.cause
    assert job is not None
    match happening.kind:
        case Happened.STARTED:
            return Kind.STARTED
        case Happened.RUNNING:
            return Kind.RUNNING
        case Happened.ENDED:
            return _ENDS[job.state]
        case Happened.RETRIED:
            return Kind.OOM if cause is Cause.GPU_OOM else Kind.RETRIED
        case Happened.REQUEUED if cause is not None:  # else it had ended before
            return Kind.PREEMPTED if cause is Cause.PREEMPTED else Kind.REQUEUED
        case _:
            return None
