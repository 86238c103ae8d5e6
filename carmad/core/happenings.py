"""What happened in a step, for people and programs that follow along: jobs that started, ended or
were retried, GPUs that were drained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from carmad.core.gpus import idling
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import SENT_BACK, Cause, GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import DrainRequested, RequeueRequested, Step
from carmad.core.rules import promises

CAUSES = {
    Cause.GPU_OOM: "out of GPU memory",
    Cause.HOST_OOM: "out of host memory",
    Cause.LAUNCH_FAILED: "it could not be started",
    Cause.NO_ACCOUNT: "its user's account is not there any more",
    Cause.UNSTARTED: "the server did not start it in time",
    Cause.LOST: "its processes were lost",
    Cause.DEPENDENCY: "a dependency was not met",
    Cause.TIME_LIMIT: "its time limit",
    Cause.IDLE: "it did not use its GPUs",
    Cause.PREEMPTED: "preempted",
    Cause.PROFILED: "its profile is known",
    Cause.REQUEUED: "its owner queued it again",
    Cause.UNRESTORED: "its GPU memory could not be brought back",
    Cause.CANCELLED: "cancelled",
}


class Kind(StrEnum):
    SUBMITTED = "submitted"  # `count` jobs: an array is submitted as one
    HELD = "held"
    RELEASED = "released"
    STARTED = "started"  # it was given GPUs
    RUNNING = "running"  # its first kernel was seen
    LIMIT80 = "limit80"  # 80 % of its time limit have passed; only if its owner asked for it
    SUSPENDED = "suspended"  # what it held on GPUs is in the host's memory
    STOPPING = "stopping"
    IDLE = "idle"  # it does not use its GPUs, and its owner is warned
    STALLED = "stalled"  # it shows no sign of life
    RETRIED = "retried"  # an attempt failed, and the job is in the queue again
    REQUEUED = "requeued"  # it is in the queue again, by its owner or because it was preempted
    ENDED = "ended"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    EXTERNAL = "external"  # a process of no job holds memory of a GPU
    WARNED = "warned"  # something is wrong with a GPU that works
    DRAINED = "drained"
    RESUMED = "resumed"  # a suspended job runs again; or a drained GPU takes jobs again


# The notices that an owner may ask for, besides those of an end.
TOLD: Mapping[Kind, tuple[str, ...]] = {
    Kind.STARTED: ("start",),
    Kind.LIMIT80: ("limit80",),
    Kind.SUSPENDED: ("suspend",),
    Kind.RESUMED: ("suspend",),
}


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    kind: Kind
    job: Job | None = None  # as it was then
    gpu: GpuId | None = None
    cause: Cause | None = None  # of an end, or of what led to it
    detail: str = ""  # of a GPU: what is wrong with it, who drained it and why, which process
    count: int = 1


def happenings(step: Step) -> Iterator[Happening]:
    """In order. Of GPUs, only what somebody asked for: faults are in the readings."""
    at = step.events[-1].at
    latest: dict[int, Job] = {job.id: job for job in step.before}
    latest |= {each.job.id: each.job for each in step.events if isinstance(each, RequeueRequested)}
    arrays: dict[int, list[Job]] = {}
    for job in step.jobs:
        before = latest.get(job.id)
        latest[job.id] = job
        if before is not None:
            yield from _changes(before, job, at)
        elif job.spec.array:
            arrays.setdefault(job.spec.array.array, []).append(job)
        else:
            yield Happening(job.submitted_at, Kind.SUBMITTED, job)
    for tasks in arrays.values():
        its = tasks[0].spec.array
        if its and its.index == its.least:  # a long one comes in parts, and counts with the first
            count = max(len(tasks), its.tasks)
            yield Happening(tasks[0].submitted_at, Kind.SUBMITTED, tasks[0], count=count)
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
        kind = Kind.HELD if job.held else Kind.RELEASED
        yield Happening(at, kind, job, count=job.tasks)
    if job.current.idle and not old.current.idle:
        yield Happening(at, Kind.IDLE, job)
    if job.current.stalled_since and not old.current.stalled_since:
        yield Happening(at, Kind.STALLED, job)
    if job.current.nearing and not old.current.nearing:
        yield Happening(at, Kind.LIMIT80, job)
    if old.state is job.state:
        return
    match job.state:
        case JobState.STARTING:
            yield Happening(at, Kind.STARTED, job)
        case JobState.RUNNING if old.state is JobState.RESUMING:
            yield Happening(at, Kind.RESUMED, job)
        case JobState.RUNNING if old.state is JobState.STARTING:
            yield Happening(at, Kind.RUNNING, job)
        case JobState.SUSPENDED if old.state is JobState.SUSPENDING:
            yield Happening(at, Kind.SUSPENDED, job)
        case JobState.STOPPING:
            yield Happening(at, Kind.STOPPING, job, cause=job.stop)
        case JobState.QUEUED | JobState.PENDING if old.lives:
            cause = job.earlier[-1].exit.cause
            kind = Kind.REQUEUED if cause in SENT_BACK else Kind.RETRIED
            yield Happening(at, kind, job, cause=cause)
        case JobState.QUEUED | JobState.PENDING if old.ended:
            yield Happening(at, Kind.REQUEUED, job, count=job.tasks)
        case _ if job.exit:
            yield Happening(at, Kind.ENDED, job, cause=job.exit.cause, count=job.tasks)


def notices(happening: Happening) -> tuple[str, ...]:
    """Which of the notices that the owner of its job asked for (`--notify`) this is. A warning is
    told unasked."""
    job = happening.job
    if happening.kind is Kind.IDLE:
        return ("idle",)
    if job is None or job.spec.notify is None:
        return ()
    found = TOLD.get(happening.kind, ())
    if happening.kind is Kind.ENDED and job.state is JobState.OUT_OF_MEMORY:
        found = ("end", "fail", "oom")
    elif happening.kind is Kind.ENDED:
        well = job.state is JobState.SUCCEEDED or happening.cause is Cause.CANCELLED
        found = ("end",) if well else ("end", "fail")
    return tuple(what for what in found if job.spec.tells(what))


def words(happening: Happening, gpus: Mapping[GpuId, Gpu], sees: bool = True) -> str:
    """What happened, as people read it after the name of the job or the GPU."""
    kind, job = happening.kind, happening.job
    if job is None:
        what, detail = kind.value.removeprefix("gpu_"), happening.detail
        if kind is Kind.WARNED:
            return f"works, but {detail}"
        if kind in (Kind.RESUMED, Kind.EXTERNAL):
            return f"{what} {detail}"
        return f"{what}: {detail}" if detail else what
    because = CAUSES.get(happening.cause) if sees and happening.cause else None
    match kind:
        case Kind.SUBMITTED if happening.count > 1:
            return f"submitted, {happening.count} tasks"
        case Kind.STARTED:
            return f"started on {where(job, gpus)}"
        case Kind.STALLED:
            return idling.STALLED
        case Kind.LIMIT80:
            return "80 % of its time limit have passed"
        case Kind.IDLE:
            begins = idling.UNUSED, idling.STALLED
            warnings = (note for note in reversed(job.notes) if note.startswith(begins))
            return next(warnings, idling.UNUSED) if sees else idling.UNUSED
        case Kind.ENDED if sees:
            return "; ".join(filter(None, (how_ended(job), promises.advice_of(job))))
        case Kind.ENDED:
            return job.state.value.replace("_", " ")
        case Kind.SUSPENDED if job.suspension:
            return f"suspended: {job.suspension.why}" if sees else "suspended"
        case Kind.RESUMED:
            return f"resumed on {where(job, gpus)}"
        case Kind.RETRIED | Kind.REQUEUED | Kind.STOPPING if because:
            return f"{kind}: {because}"
        case _:
            return kind.value


def name_gpus(text: str, gpus: Mapping[GpuId, Gpu]) -> str:
    """By the indices that they have now, instead of the ids that are stored."""
    for id, gpu in gpus.items():
        text = text.replace(id, str(gpu.index))
    return text


def where(job: Job, gpus: Mapping[GpuId, Gpu]) -> str:
    if not job.gpus:
        return "CPUs alone"
    named = [str(gpus[id].index) if id in gpus else id for id in job.gpus]
    return f"GPU {', '.join(named)}"


def how_ended(job: Job) -> str:
    """An ended job's state, its exit code and what proves the cause."""
    parts, exit = [job.state.value.replace("_", " ")], job.exit
    if exit is None or job.state is JobState.SUCCEEDED:
        return parts[0]
    if exit.cause is Cause.IDLE:
        parts.append(CAUSES[exit.cause])
    elif exit.signal:
        parts.append(f"signal {exit.signal}")
    elif exit.code:
        parts.append(f"exit code {exit.code}")
    elif job.state is JobState.FAILED and exit.cause in CAUSES:
        parts.append(CAUSES[exit.cause])
    return ", ".join(parts) + (f": {exit.evidence}" if exit.evidence else "")
