"""What was recorded of the GPUs over the last day.

Answers are made for uPlot: one list of times, and lists of values beside it. None: not recorded, or
not known. Times are Unix seconds; memory is in MiB.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, Moment, answer, resource
from carmad.api.wire import SCHEMA, Digits, pick, stamp
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.problems import NotFound, Unavailable
from carmad.store.values import Named
from carmad.timeline.marks import Mark
from carmad.timeline.recorder import ALL, HOUR_S, KEPT_S, MINUTE_S, OTHERS, Bin, Timeline, Track

router = resource()

Values = list[float | None]

USUAL_S = 6 * HOUR_S

Step = Annotated[int, Query(ge=1, le=HOUR_S, description="bins of at least so many seconds")]

MOST_POINTS = 1000
MOST_JOBS = 100  # series of a GPU
MOST_MARKS = 1000  # of a GPU
LIMITS = ("sm_active", "sm_occupancy", "dram_active")  # of the settings of the risk
STEPS_S = (MINUTE_S, 120, 300, 600, 900, 1800, HOUR_S)

Names = Mapping[JobId, Named]
NOBODY = Named("", "", 0, "-")


class MemoryOut(TypedDict):
    """Of a job on a GPU, or of all of the GPU."""

    used_mib: Annotated[Values, lambda bins: _values("used", bins)]  # means
    used_max_mib: Annotated[Values, lambda bins: _values("most", bins)]
    # What was set aside: as declared or estimated, with its margin.
    promised_mib: Annotated[Values, lambda bins: _values("promised", bins)]


class JobSeriesOut(MemoryOut):
    """A job on a GPU. Its lists begin at `times[first]`, and are shorter than `times`: before and
    after, it was not there. Stacked, with `external_mib`, they make `used_mib`."""

    id: int | None  # None: other jobs, added up
    label: str
    user: str
    name: str  # "-" of others' jobs
    first: int


class MarkOut(TypedDict):
    at: Annotated[float, Digits(3)]
    kind: str
    job: int | None
    label: str
    user: str
    text: str


class GpuTimelineOut(MemoryOut):
    # Means, 0-1; GPU utilisation where SM activity is not known.
    sm_active: Annotated[Values, lambda bins: _values("sm", bins, 3)]
    sm_active_max: Annotated[Values, lambda bins: _values("sm_most", bins, 3)]
    id: str
    index: int | None  # None: not known any more
    name: str
    present: bool  # False: it has vanished since, such as a MIG instance
    mig: bool
    memory_mib: int | None
    # Of processes of no job.
    external_mib: Annotated[Values, lambda bins: _values("external", bins)]
    power_w: Annotated[Values, lambda bins: _values("power", bins, 1)]
    jobs: list[JobSeriesOut]
    marks: list[MarkOut]


class TimelineOut(TypedDict):
    schema: int
    since: str
    until: str
    step_s: int
    times: list[int]  # when each bin begins
    limits: dict[str, float]  # of collocation risk: `sm_active`, `sm_occupancy`, `dram_active`
    gpus: list[GpuTimelineOut]


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
    end = now if until is None else until
    begin = end - USUAL_S if since is None else since
    span = Span.choose(begin, end, now, step_s)
    scene = await call.service.scene()
    return await call.service.render(lambda: _gpu_timelines(call, scene, span, end, gpu))


def _gpu_timelines(call: Call, scene: Scene, span: Span, end: float, gpu: str | None) -> Response:
    found = span.read(call.service.timeline, call.service.now())
    if gpu is not None:
        index = {each.id: str(each.gpu.index) for each in found if each.gpu}
        found = [each for each in found if gpu in (each.id, index.get(each.id))]
        if not found:
            raise NotFound(f"nothing is recorded of a GPU {gpu!r:.80}", "See `carma gpus`.")
    shown = {job for one in found for job in (*one.bins, *(mark.job for mark in one.marks))}
    names = _names(call, scene, {job for job in shown if job and job > 0})
    risk = call.service.settings.risk
    out: TimelineOut = {
        "schema": SCHEMA,
        "since": stamp(span.start),
        "until": stamp(min(span.end, end, scene.now)),
        "step_s": span.step_s,
        "times": span.times(),
        "limits": {name: getattr(risk, name) for name in LIMITS},
        "gpus": [gpu_timeline_out(one, span.count, names) for one in found],
    }
    return answer(out)


def _names(call: Call, scene: Scene, jobs: Iterable[JobId]) -> dict[JobId, Named]:
    """Live jobs are named by the core, the others by the store; others' are called "-"."""
    live = {id: scene.live[id] for id in jobs if id in scene.live}
    found = call.service.store.name_jobs([id for id in jobs if id not in live])
    for id, job in live.items():
        found[id] = Named(label(job), job.spec.user, job.spec.uid, job.spec.name)
    peer = call.peer
    return {
        id: one if peer.admin or (one.uid, one.user) == peer.owner else replace(one, name="-")
        for id, one in found.items()
    }


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an answer, in bins."""

    start: int
    step_s: int
    count: int

    @classmethod
    def choose(cls, since: float, until: float, now: float, step_s: int) -> Span:
        """With the finest bins of at least `step_s` of which there are not too many. Raises
        NotFound for no time at all."""
        since, until = max(since, now - KEPT_S), min(until, now)
        if since >= until:
            hint = f"The last {KEPT_S // HOUR_S} hours are kept; `since` must be before `until`."
            raise NotFound("nothing is recorded of that time", hint)
        fits = (s for s in STEPS_S if s >= step_s and (until - since) / s < MOST_POINTS - 1)
        step = next(fits, STEPS_S[-1])
        start = math.floor(since / step) * step
        return cls(start, step, math.ceil((until - start) / step))

    @property
    def end(self) -> int:
        return self.start + self.count * self.step_s

    def times(self) -> list[int]:
        return list(range(self.start, self.end, self.step_s))

    def read(self, timeline: Timeline, now: float) -> list[Track]:
        try:
            return timeline.tracks(self.start, self.step_s, self.count, now)
        except CarmaError as error:
            raise Unavailable(error.message, error.hint) from error


def gpu_timeline_out(of: Track, count: int, names: Names) -> GpuTimelineOut:
    """`count`: of bins. `names`: of the jobs that are known still."""
    gpu = of.gpu
    whole = of.bins.get(ALL, {})
    return pick(
        GpuTimelineOut,
        [whole.get(number) for number in range(count)],
        id=of.id,
        index=gpu.index if gpu else None,
        name=gpu.name if gpu else "",
        present=of.present,
        mig=gpu.is_mig if gpu else False,
        memory_mib=gpu.memory_mib if gpu else None,
        jobs=_series(of, names),
        marks=[_mark(mark, names) for mark in of.marks[-MOST_MARKS:]],
    )


def _series(of: Track, names: Names) -> list[JobSeriesOut]:
    """Of the jobs that held most, in the order in which they came; the others are one series."""
    bins = of.bins

    def size(job: JobId) -> float:
        return sum(max(each.used or 0.0, each.promised or 0.0) for each in bins[job].values())

    jobs = sorted(bins.keys() - {ALL, OTHERS}, key=size, reverse=True)
    chosen = sorted(jobs[:MOST_JOBS], key=lambda job: (next(iter(bins[job])), job))
    made = [_job_series(bins[job], _named(names, job), job) for job in chosen]
    others: defaultdict[int, list[Bin]] = defaultdict(list)
    for job in (*jobs[MOST_JOBS:], OTHERS):
        for number, its in bins.get(job, {}).items():
            others[number].append(its)
    if others:
        added = {number: _add_up(others[number]) for number in sorted(others)}
        made.append(_job_series(added, NOBODY, None))
    return made


def _add_up(bins: Sequence[Bin]) -> Bin:
    used = sum(each.used or 0.0 for each in bins)
    promised = sum(each.promised or 0.0 for each in bins)
    return Bin(used, max(each.most or 0.0 for each in bins), promised)


def _job_series(bins: Mapping[int, Bin], named: Named, id: JobId | None) -> JobSeriesOut:
    first, last = min(bins), max(bins)
    its = [bins.get(number) for number in range(first, last + 1)]
    whose = {"label": named.label, "user": named.user, "name": named.name}
    return pick(JobSeriesOut, its, id=id, first=first, **whose)


def _mark(mark: Mark, names: Names) -> MarkOut:
    its = NOBODY if mark.job is None else _named(names, mark.job)
    text = mark.text if mark.job is None or its.name != "-" else ""
    return pick(MarkOut, mark, label=its.label, user=its.user, text=text)


def _named(names: Names, job: JobId) -> Named:
    return names.get(job) or Named(str(job), "", 0, "-")


def _values(name: str, bins: Iterable[Bin | None], digits: int | None = None) -> Values:
    found = (getattr(each, name) if each else None for each in bins)
    return [None if value is None else round(value, digits) for value in found]
