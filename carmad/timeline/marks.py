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


_KINDS = frozenset(Kind)


class Mark(NamedTuple):
    at: float
    kind: str  # a `Kind`; a later version may have written others
    job: JobId | None = None
    text: str = ""


def marks(happening: Happening) -> Iterator[tuple[GpuId, Mark]]:
    """On the GPUs that it concerns."""
    at, job, kind = happening.at, happening.job, _kind(happening)
    if kind not in _KINDS:
        return
    if job is None:
        if happening.gpu is not None:
            yield happening.gpu, Mark(at, kind, None, happening.detail)
    elif job.attempts:
        for gpu in job.gpus or (job.attempts[-1].gpus if not job.ended else ()):
            yield gpu, Mark(at, kind, job.id)


def _kind(happening: Happening) -> str:
    """A `Kind`, if it is shown."""
    job, cause = happening.job, happening.cause
    match happening.kind:
        case Happened.ENDED if job:
            return Kind.OOM if job.state is JobState.OUT_OF_MEMORY else job.state
        case Happened.RETRIED if cause is Cause.GPU_OOM:
            return Kind.OOM
        case Happened.REQUEUED if cause is Cause.PREEMPTED:
            return Kind.PREEMPTED
        case Happened.REQUEUED if cause is None:  # it had ended before
            return ""
        case Happened.RESUMED if job:
            return ""
        case kind:
            return kind
