"""Happenings, from the core's values to the wire and to words."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.api.render import label, state_code
from carmad.api.responses.jobs import EventJobOut, EventOut
from carmad.api.times import stamp
from carmad.core.happenings import Happening, Kind
from carmad.core.types import Cause, Gpu, GpuId, Job, JobState

CAUSES = {
    Cause.GPU_OOM: "out of GPU memory",
    Cause.HOST_OOM: "out of host memory",
    Cause.LAUNCH_FAILED: "it could not be started",
    Cause.LOST: "its processes were lost",
    Cause.DEPENDENCY: "a dependency was not met",
    Cause.TIME_LIMIT: "its time limit",
    Cause.PREEMPTED: "preempted",
    Cause.PROFILED: "its profile is known",
    Cause.CANCELLED: "cancelled",
}


def event_out(
    happening: Happening, id: str, gpus: Mapping[GpuId, Gpu], sees: bool = True
) -> EventOut:
    """`sees`: the reader may see all of the job, and not only that it is there."""
    out: EventOut = {"id": id, "at": stamp(happening.at), "event": happening.kind.value, "text": ""}
    job, gpu = happening.job, happening.gpu
    if gpu is not None:
        out["gpu"] = {"id": gpu, "index": gpus[gpu].index if gpu in gpus else None}
    if job is not None:
        out["job"] = _job(job, sees)
        if happening.count > 1:
            out["count"] = happening.count
        if sees and happening.cause is not None:
            out["cause"] = happening.cause.value
    out["text"] = words(happening, gpus, sees)
    return out


def _job(job: Job, sees: bool) -> EventJobOut:
    return {
        "id": job.id,
        "label": label(job),
        "user": job.spec.user,
        "name": job.spec.name if sees else "-",
        "state": job.state.value,
        "code": state_code(job),
        "attempt": job.attempt,
        "gpus": list(job.gpus),
    }


def words(happening: Happening, gpus: Mapping[GpuId, Gpu], sees: bool = True) -> str:
    """For people, after the name of the job or the GPU."""
    kind, job = happening.kind, happening.job
    if job is None:
        what = kind.value.removeprefix("gpu_")
        return f"{what} {happening.detail}" if kind is Kind.RESUMED else _with(what, happening)
    because = CAUSES.get(happening.cause) if sees and happening.cause else None
    match kind:
        case Kind.SUBMITTED if happening.count > 1:
            return f"submitted, {happening.count} tasks"
        case Kind.STARTED:
            return f"started on {where(job, gpus)}"
        case Kind.LIMIT80:
            return "80 % of its time limit have passed"
        case Kind.ENDED:
            return how_ended(job) if sees else job.state.value.replace("_", " ")
        case Kind.RETRIED | Kind.REQUEUED | Kind.STOPPING if because:
            return f"{kind}: {because}"
        case _:
            return kind.value


def _with(what: str, happening: Happening) -> str:
    return f"{what}: {happening.detail}" if happening.detail else what


def where(job: Job, gpus: Mapping[GpuId, Gpu]) -> str:
    named = [str(gpus[id].index) if id in gpus else id for id in job.gpus]
    return f"GPU {', '.join(named)}"


def how_ended(job: Job) -> str:
    """An ended job's state, its exit code and what proves the cause."""
    said, exit = [job.state.value.replace("_", " ")], job.exit
    if exit is None or job.state is JobState.SUCCEEDED:
        return said[0]
    if exit.signal:
        said.append(f"signal {exit.signal}")
    elif exit.code:
        said.append(f"exit code {exit.code}")
    elif job.state is JobState.FAILED and exit.cause in CAUSES:
        said.append(CAUSES[exit.cause])
    return ", ".join(said) + (f": {exit.evidence}" if exit.evidence else "")
