"""What was recorded over time, from bins to the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from carmad.api.responses.timeline import (
    GpuTimelineOut,
    JobGpuTimelineOut,
    JobSeriesOut,
    MarkOut,
    MemoryOut,
    SpanOut,
    Values,
)
from carmad.core.types import Job, JobId
from carmad.errors import CarmaError
from carmad.timeline.bins import OTHERS, Bins, Cell
from carmad.timeline.hours import FINE_S, HOUR_S, KEPT_S, Track
from carmad.timeline.marks import Mark

MOST_POINTS = 1000
MOST_JOBS = 100  # series of a GPU
MOST_MARKS = 1000  # of a GPU
STEPS_S = (*FINE_S, 120, 300, 600, 900, 1800, HOUR_S)


Name = Callable[[JobId], tuple[str, str, str]]  # label, user, and the name if it may be seen


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an answer, in bins."""

    start: int
    step_s: int
    count: int

    @classmethod
    def chosen(cls, since: float, until: float, now: float, step_s: int) -> Span:
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


def drawn(track: Track, span: Span) -> Drawn:
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
        "promised_mib": _promised(of),
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
        {
            "number": each.number,
            "gpus": list(each.gpus),
            "started_at": each.started_at,
            "ended_at": each.ended_at,
            "cause": each.exit.cause.value if each.exit else None,
        }
        for each in job.attempts
    ]


def _series(cells: Mapping[JobId, Mapping[int, Cell]], name: Name) -> list[JobSeriesOut]:
    """Of the jobs that held most, in the order in which they came; the others are one series."""
    jobs = sorted(
        cells.keys() - {OTHERS},
        key=lambda job: -sum([max(cell.used, cell.promised) for cell in cells[job].values()]),
    )
    chosen = sorted(jobs[:MOST_JOBS], key=lambda job: (next(iter(cells[job])), job))
    made = [_one(cells[job], name(job), job) for job in chosen]
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
        made.append(_one(dict(sorted(others.items())), ("", "", "-"), None))
    return made


def _one(cells: Mapping[int, Cell], named: tuple[str, str, str], id: JobId | None) -> JobSeriesOut:
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


def _promised(of: Drawn) -> Values:
    sums = [0.0 if weight else math.nan for weight in of.bins.weights]
    for cells in of.cells.values():
        for number, cell in cells.items():
            sums[number] += cell.promised
    return _values(sums)


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
