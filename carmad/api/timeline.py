"""What was recorded over the last day: of the GPUs, and of one job.

Answers are made for uPlot: one list of times, and lists of values beside it. None: not recorded, or
not known. Times are Unix seconds; memory is in MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated

from fastapi import Query
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, Label, Moment, answer, resource
from carmad.api.wire import SCHEMA, parse_time, pick, stamp
from carmad.core.gpus.sharing import label as label_of
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.problems import NotFound
from carmad.store.values import Named
from carmad.timeline.hours import FINE_S, HOUR_S, KEPT_S, OTHERS, Bins, Cell, Mark, Track

router = resource()

Values = list[float | None]

USUAL_S = 6 * HOUR_S

Step = Annotated[int, Query(ge=1, le=HOUR_S, description="bins of at least so many seconds")]

MOST_POINTS = 1000
MOST_JOBS = 100  # series of a GPU
MOST_MARKS = 1000  # of a GPU
STEPS_S = (*FINE_S, 120, 300, 600, 900, 1800, HOUR_S)

Name = Callable[[JobId], tuple[str, str, str]]  # label, user, and the name if it may be seen


class MemoryOut(TypedDict):
    """Of a job on a GPU."""

    used_mib: Values  # means
    used_max_mib: Values
    promised_mib: Values  # what was set aside for it: as declared or estimated, with its margin


class JobSeriesOut(MemoryOut):
    """A job on a GPU. Its lists begin at `times[first]`, and are shorter than `times`: before and
    after, it was not there. Stacked, with `external_mib`, they make `used_mib`."""

    id: int | None  # None: other jobs, added up
    label: str
    user: str
    name: str  # "-" of others' jobs
    first: int


class MarkOut(TypedDict):
    at: float
    kind: str
    job: int | None
    label: str
    user: str
    text: str


class GpuTimelineOut(TypedDict):
    id: str
    index: int | None  # None: not known any more
    name: str
    present: bool  # False: it has vanished since, such as a MIG instance
    mig: bool
    memory_mib: int | None
    used_mib: Values  # all of it, means
    used_max_mib: Values
    external_mib: Values  # of processes of no job
    promised_mib: Values  # to its jobs together
    sm_active: Values  # means, 0-1; GPU utilisation where SM activity is not known
    sm_active_max: Values
    power_w: Values
    jobs: list[JobSeriesOut]
    marks: list[MarkOut]
    left_out: int  # older marks, of which there are too many


class TimelineOut(TypedDict):
    schema: int
    since: str
    until: str
    step_s: int
    times: list[int]  # when each bin begins
    limits: dict[str, float]  # of collocation risk: `sm_active`, `sm_occupancy`, `dram_active`
    window_s: float  # over which the risk is judged
    gpus: list[GpuTimelineOut]


class JobGpuTimelineOut(MemoryOut):
    """A GPU that the job was on. What it held itself is `used_mib`."""

    id: str
    index: int | None  # None: not known any more
    name: str
    memory_mib: int | None
    gpu_used_mib: Values  # by all
    sm_active: Values  # of the GPU, so by all that ran there
    sm_active_max: Values
    marks: list[MarkOut]  # of this job


class SpanOut(TypedDict):
    """An attempt."""

    number: int
    gpus: list[str]
    started_at: float | None
    ended_at: float | None  # None: it goes on
    cause: str | None


class JobTimelineOut(TypedDict):
    schema: int
    id: int
    label: str
    since: str
    until: str
    step_s: int
    times: list[int]  # when each bin begins
    limits: dict[str, float]  # of collocation risk
    attempts: list[SpanOut]
    gpus: list[JobGpuTimelineOut]


@router.get("/timeline", responses={200: {"model": TimelineOut}})
async def timeline(
    call: Caller,
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
    span = Span.choose(begin, end, now, step_s)
    tracks = call.service.timeline.tracks(span.start, span.end)
    if gpu is not None:
        tracks = [each for each in tracks if _is_named(each, gpu)]
        if not tracks:
            raise NotFound(f"nothing is recorded of a GPU {gpu!r:.80}", "See `carma gpus`.")
    scene = await call.service.scene()
    return await call.service.render(lambda: _gpu_timelines(call, scene, span, tracks))


def _gpu_timelines(call: Call, scene: Scene, span: Span, tracks: list[Track]) -> Response:
    found = [draw(track, span) for track in tracks]
    name = _names(call, scene, {job for one in found for job in one.jobs()})
    settings = call.service.settings
    out: TimelineOut = {
        "schema": SCHEMA,
        "since": stamp(span.start),
        "until": stamp(min(span.end, scene.now)),
        "step_s": span.step_s,
        "times": span.times(),
        "limits": _limits(call),
        "window_s": settings.monitor.window_s,
        "gpus": [gpu_timeline_out(one, name) for one in found],
    }
    return answer(out)


@router.get("/jobs/{label}/timeline", responses={200: {"model": JobTimelineOut}})
async def job_timeline(call: Caller, label: Label, step_s: Step = 1) -> Response:
    """A job's memory on its GPUs over its attempts, as far as they are in the last day, beside what
    was promised to it and the load of the GPU."""
    job, scene = await call.own_job(label)
    now = call.service.now()
    times = [each.started_at for each in job.attempts if each.started_at is not None]
    begin = min(times, default=now - 1.0)
    end = now if job.ended_at is None else job.ended_at
    if end <= max(begin, now - KEPT_S):  # it never ran, or too long ago
        begin, end = now - 1.0, now
    span = Span.choose(begin, end, now, step_s)
    its = {gpu for each in job.attempts for gpu in each.gpus}
    tracks = [each for each in call.service.timeline.tracks(span.start, span.end) if each.id in its]
    return await call.service.render(lambda: _job_timeline(call, scene, job, span, tracks))


def _job_timeline(call: Call, scene: Scene, job: Job, span: Span, tracks: list[Track]) -> Response:
    name = _names(call, scene, {job.id})
    out: JobTimelineOut = {
        "schema": SCHEMA,
        "id": job.id,
        "label": label_of(job),
        "since": stamp(span.start),
        "until": stamp(min(span.end, scene.now if job.ended_at is None else job.ended_at)),
        "step_s": span.step_s,
        "times": span.times(),
        "limits": _limits(call),
        "attempts": spans_out(job),
        "gpus": [job_gpu_out(draw(track, span), job.id, name) for track in tracks],
    }
    return answer(out)


def _limits(call: Call) -> dict[str, float]:
    risk = call.service.settings.risk
    return {name: getattr(risk, name) for name in ("sm_active", "sm_occupancy", "dram_active")}


def _names(call: Call, scene: Scene, jobs: Iterable[JobId]) -> Name:
    """Live jobs are named by the core, the others by the store."""
    live = {id: scene.live[id] for id in jobs if id in scene.live}
    named = call.service.store.name_jobs([id for id in jobs if id not in live])
    for id, job in live.items():
        named[id] = Named(label_of(job), job.spec.user, job.spec.uid, job.spec.name)
    return namer(named, lambda owner: call.peer.admin or owner == call.peer.owner)


def _is_named(track: Track, ref: str) -> bool:
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


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an answer, in bins."""

    start: int
    step_s: int
    count: int

    @classmethod
    def choose(cls, since: float, until: float, now: float, step_s: int) -> Span:
        """With the finest bins of at least `step_s` of which there are not too many. Raises
        CarmaError for no time at all."""
        since, until = max(since, now - KEPT_S), min(until, now)
        if since >= until:
            hint = f"The last {KEPT_S // HOUR_S} hours are kept; `since` must be before `until`."
            raise CarmaError("nothing is recorded of that time", hint)
        fits = (s for s in STEPS_S if s >= step_s and (until - since) / s < MOST_POINTS - 1)
        step = next(fits, STEPS_S[-1])
        start = math.floor(since / step) * step
        return cls(start, step, math.ceil((until - start) / step))

    @property
    def end(self) -> int:
        return self.start + self.count * self.step_s

    def times(self) -> list[int]:
        return list(range(self.start, self.end, self.step_s))


@dataclass(slots=True)
class Drawn:
    """A GPU's part of an answer, before jobs have names."""

    track: Track
    bins: Bins
    cells: dict[JobId, dict[int, Cell]] = field(default_factory=dict)  # by bin, in order
    marks: list[Mark] = field(default_factory=list)

    def jobs(self) -> set[JobId]:
        return {*self.cells, *(mark.job for mark in self.marks if mark.job is not None)}


def draw(track: Track, span: Span) -> Drawn:
    """The track in the bins of the answer."""
    bins = Bins(span.start, span.step_s, span.count)
    for hour in track.hours:
        bins.take(hour.bins)
    made = Drawn(track, bins)
    for number, cells in bins.cells().items():
        for cell in cells:
            made.cells.setdefault(cell.job, {})[number] = cell
    for hour in track.hours:
        made.marks += [mark for mark in hour.marks if span.start <= mark.at < span.end]
    made.marks.sort(key=attrgetter("at"))
    return made


def gpu_timeline_out(of: Drawn, name: Name) -> GpuTimelineOut:
    gpu, columns = of.track.gpu, of.bins.columns
    shown = of.marks[-MOST_MARKS:]
    return {
        "id": of.track.id,
        "index": gpu.index if gpu else None,
        "name": gpu.name if gpu else "",
        "present": of.track.present,
        "mig": gpu.is_mig if gpu else False,
        "memory_mib": gpu.memory_mib if gpu else None,
        "used_mib": _values(columns["used_mib"]),
        "used_max_mib": _values(columns["used_max_mib"]),
        "external_mib": _values(columns["external_mib"]),
        "promised_mib": _sum_promised(of),
        "sm_active": _values(columns["sm_active"], 3),
        "sm_active_max": _values(columns["sm_active_max"], 3),
        "power_w": _values(columns["power_w"], 1),
        "jobs": _series(of.cells, name),
        "marks": [_mark(mark, name) for mark in shown],
        "left_out": len(of.marks) - len(shown),
    }


def job_gpu_out(of: Drawn, job: JobId, name: Name) -> JobGpuTimelineOut:
    gpu, columns = of.track.gpu, of.bins.columns
    its = [of.cells.get(job, {}).get(number) for number in range(len(of.bins))]
    return {
        "id": of.track.id,
        "index": gpu.index if gpu else None,
        "name": gpu.name if gpu else "",
        "memory_mib": gpu.memory_mib if gpu else None,
        **_memory(its),
        "gpu_used_mib": _values(columns["used_mib"]),
        "sm_active": _values(columns["sm_active"], 3),
        "sm_active_max": _values(columns["sm_active_max"], 3),
        "marks": [_mark(mark, name) for mark in of.marks if mark.job == job],
    }


def spans_out(job: Job) -> list[SpanOut]:
    return [
        pick(SpanOut, each, cause=each.exit.cause if each.exit else None) for each in job.attempts
    ]


def _series(cells: Mapping[JobId, Mapping[int, Cell]], name: Name) -> list[JobSeriesOut]:
    """Of the jobs that held most, in the order in which they came; the others are one series."""
    jobs = sorted(
        cells.keys() - {OTHERS},
        key=lambda job: -sum([max(cell.used, cell.promised) for cell in cells[job].values()]),
    )
    chosen = sorted(jobs[:MOST_JOBS], key=lambda job: (next(iter(cells[job])), job))
    made = [_job_series(cells[job], name(job), job) for job in chosen]
    others: dict[int, Cell] = {}
    for job in (*jobs[MOST_JOBS:], OTHERS):
        for number, cell in cells.get(job, {}).items():
            old = others.get(number, Cell(OTHERS, 0.0, 0.0, 0.0))
            others[number] = Cell(
                OTHERS,
                old.used + cell.used,
                max(old.most, cell.most),
                old.promised + cell.promised,
            )
    if others:
        made.append(_job_series(dict(sorted(others.items())), ("", "", "-"), None))
    return made


def _job_series(
    cells: Mapping[int, Cell], named: tuple[str, str, str], id: JobId | None
) -> JobSeriesOut:
    numbers = list(cells)
    first, last = numbers[0], numbers[-1]
    label, user, name = named
    return {
        "id": id,
        "label": label,
        "user": user,
        "name": name,
        "first": first,
        **_memory([cells.get(number) for number in range(first, last + 1)]),
    }


def _memory(cells: Sequence[Cell | None]) -> MemoryOut:
    return {
        "used_mib": [_mib(cell.used) if cell else None for cell in cells],
        "used_max_mib": [_mib(cell.most) if cell else None for cell in cells],
        "promised_mib": [_mib(cell.promised) if cell else None for cell in cells],
    }


def _mib(value: float) -> int | None:
    return round(value) if value == value else None


def _sum_promised(of: Drawn) -> Values:
    """To all together at the beginning of a bin or at its end, whichever is more: in a bin, one may
    come after another has gone."""
    weights = of.bins.weights
    begin, end, alone = ([0.0] * len(weights) for _ in range(3))
    for cells in of.cells.values():
        for number, cell in cells.items():
            begin[number] += cell.promised if number - 1 in cells else 0.0
            end[number] += cell.promised if number + 1 in cells else 0.0
            alone[number] = max(alone[number], cell.promised)
    sums = zip(weights, begin, end, alone, strict=True)
    return _values(max(its) if weight else math.nan for weight, *its in sums)


def _mark(mark: Mark, name: Name) -> MarkOut:
    label, user, its_name = name(mark.job) if mark.job is not None else ("", "", "")
    return {
        "at": round(mark.at, 3),
        "kind": mark.kind.value,
        "job": mark.job,
        "label": label,
        "user": user,
        "text": "" if its_name == "-" else mark.text,
    }


def _values(column: Iterable[float], digits: int | None = None) -> Values:
    """NaN, which is not known, as None."""
    return [round(value, digits) if value == value else None for value in column]
