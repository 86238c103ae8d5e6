"""What was recorded over the last day: of the GPUs, and of one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from carmad.api.render import label as label_of
from carmad.api.responses import SCHEMA
from carmad.api.responses.timeline import JobTimelineOut, TimelineOut
from carmad.api.timeline import (
    Name,
    Span,
    drawn,
    gpu_timeline_out,
    job_gpu_out,
    spans_out,
)
from carmad.api.times import parse_time, stamp
from carmad.core.scene import Scene
from carmad.core.types import GpuId, Job, JobId
from carmad.http.answers import PROBLEMS, Asked, Call, answer
from carmad.http.problems import NotFound
from carmad.http.routes.jobs import Label, Moment, mine
from carmad.store.values import Named
from carmad.timeline.hours import HOUR_S, KEPT_S, Track

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

USUAL_S = 6 * HOUR_S

Step = Annotated[int, Query(ge=1, le=HOUR_S, description="bins of at least so many seconds")]


@router.get("/timeline", responses={200: {"model": TimelineOut}})
async def timeline(
    call: Asked,
    since: Moment = None,
    until: Moment = None,
    gpu: Annotated[str | None, Query(description="its index or UUID", max_length=128)] = None,
    step_s: Step = 1,
) -> Response:
    """The GPUs' memory, by job, and their load over the last hours (six, without `since`), as lists
    beside one list of times, of at most 1,000 bins. Null: nothing was recorded then. Names of
    others' jobs are left out."""
    now = call.service.now()
    end = now if (given := parse_time(until)) is None else given
    begin = end - USUAL_S if (given := parse_time(since)) is None else given
    span = Span.chosen(begin, end, now, step_s)
    tracks = call.service.timeline.tracks(span.start, span.end)
    if gpu is not None:
        tracks = [each for each in tracks if _named(each, gpu)]
        if not tracks:
            raise NotFound(f"nothing is recorded of a GPU {gpu!r:.80}", "See `carma gpus`.")
    scene = await call.service.scene()
    return await call.service.listed(lambda: _drawn(call, scene, span, tracks))


def _drawn(call: Call, scene: Scene, span: Span, tracks: list[Track]) -> Response:
    found = [drawn(track, span) for track in tracks]
    name = _names(call, scene, {job for one in found for job in one.jobs()})
    settings = call.service.settings
    out: TimelineOut = {
        "schema": SCHEMA,
        "since": stamp(span.start),
        "until": stamp(span.end),
        "step_s": span.step_s,
        "times": span.times(),
        "limits": _limits(call),
        "window_s": settings.monitor.window_s,
        "gpus": [gpu_timeline_out(one, name) for one in found],
    }
    return answer(out)


@router.get("/jobs/{label}/timeline", responses={200: {"model": JobTimelineOut}})
async def job_timeline(call: Asked, label: Label, step_s: Step = 1) -> Response:
    """A job's memory on its GPUs over its attempts, as far as they are in the last day, beside what
    was promised to it and the load of the GPU."""
    job, scene = await mine(call, label)
    now = call.service.now()
    times = [each.started_at for each in job.attempts if each.started_at is not None]
    begin = min(times, default=now - 1.0)
    end = now if job.ended_at is None else job.ended_at
    if end <= max(begin, now - KEPT_S):  # it never ran, or too long ago
        begin, end = now - 1.0, now
    span = Span.chosen(begin, end, now, step_s)
    its = {gpu for each in job.attempts for gpu in each.gpus}
    tracks = [each for each in call.service.timeline.tracks(span.start, span.end) if each.id in its]
    return await call.service.listed(lambda: _of_job(call, scene, job, span, tracks))


def _of_job(call: Call, scene: Scene, job: Job, span: Span, tracks: list[Track]) -> Response:
    name = _names(call, scene, {job.id})
    out: JobTimelineOut = {
        "schema": SCHEMA,
        "id": job.id,
        "label": label_of(job),
        "since": stamp(span.start),
        "until": stamp(span.end),
        "step_s": span.step_s,
        "times": span.times(),
        "limits": _limits(call),
        "attempts": spans_out(job),
        "gpus": [job_gpu_out(drawn(track, span), job.id, name) for track in tracks],
    }
    return answer(out)


def _limits(call: Call) -> dict[str, float]:
    risk = call.service.settings.risk
    return {
        "sm_active": risk.sm_active,
        "sm_occupancy": risk.sm_occupancy,
        "dram_active": risk.dram_active,
    }


def _names(call: Call, scene: Scene, jobs: Iterable[JobId]) -> Name:
    """Live jobs are named by the core, the others by the store."""
    live = {id: scene.live[id] for id in jobs if id in scene.live}
    named = call.service.store.named([id for id in jobs if id not in live])
    for id, job in live.items():
        named[id] = Named(label_of(job), job.spec.user, job.spec.uid, job.spec.name)
    return namer(named, lambda owner: call.peer.admin or owner == call.peer.owner)


def _named(track: Track, ref: str) -> bool:
    return track.id == GpuId(ref) or (track.gpu is not None and str(track.gpu.index) == ref)


def namer(known: Mapping[JobId, Named], sees: Callable[[tuple[int, str]], bool]) -> Name:
    """`sees`: whether the reader may see what belongs to an account. A job that is not `known` any
    more has no name."""

    def name(job: JobId) -> tuple[str, str, str]:
        one = known.get(job)
        if one is None:
            return str(job) if job else "", "", "-"
        return one.label, one.user, one.name if sees((one.uid, one.user)) else "-"

    return name
