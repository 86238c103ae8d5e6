"""The charts of the first page and of a job, as `static/charts.js` draws them: what the daemon
recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from carmad.readable import clean
from cli.text import fraction, memory

if TYPE_CHECKING:
    from carmad.api.job import JobOut
    from carmad.api.jobs import CurveOut
    from carmad.api.timeline import (
        GpuTimelineOut,
        JobGpuTimelineOut,
        JobSeriesOut,
        JobTimelineOut,
        MarkOut,
        TimelineOut,
    )

HOURS = {1: 10, 6: 30, 24: 120}  # with the width of a bin, in seconds
USUAL_HOURS = 6
OF_LOAD = {"slowed": "slow-down", "risky": "too busy to share"}  # shown beside the load
OF_MEMORY = {
    "started": "start",
    "succeeded": "end",
    "failed": "failure",
    "timed_out": "timed out",
    "cancelled": "cancelled",
    "oom": "out of memory",
    "retried": "retry",
    "requeued": "back in the queue",
    "preempted": "preempted",
    "warned": "warning",
    "drained": "drained",
    "resumed": "takes jobs again",
    "gpu_lost": "GPU lost",
    "gpu_back": "GPU back",
    "external": "external process",
}
MOST_NAMED = 20  # jobs in a summary
LEAST_BINS = 18  # of a chart

Values = list[float | None]


class Series(TypedDict):
    name: str
    short: NotRequired[str]  # for where the name has no room
    values: Values
    kind: str  # area, line, step; or points, which are no bins, and may be below zero
    stack: bool
    job: NotRequired[int]  # whose it is, which decides on its colour
    quiet: NotRequired[bool]  # of no job, hatched


class Limit(TypedDict):
    name: str
    value: float


class Tick(TypedDict):
    at: float
    job: int | None
    text: str
    kind: str
    word: str  # for its kind


class Chart(TypedDict):
    title: str
    summary: NotRequired[str]  # for readers who cannot see it
    unit: str
    span_s: NotRequired[int]
    times: Sequence[float]
    until: NotRequired[float]  # nothing is drawn after it
    series: list[Series]
    limits: list[Limit]
    marks: list[Tick]


def gpu_charts(answer: TimelineOut, hours: int) -> dict[str, Chart]:
    """Two of each GPU, by `memory_of` and `load_of`."""
    made: dict[str, Chart] = {}
    for gpu in answer["gpus"]:
        made[memory_of(gpu["id"])] = _memory(answer, gpu, hours)
        made[load_of(gpu["id"])] = _load(answer, gpu, hours)
    skipped = _before_the_record(answer)
    until = datetime.fromisoformat(answer["until"]).timestamp()
    for chart in made.values():
        chart["until"] = until
        chart["times"] = chart["times"][skipped:]
        for series in chart["series"]:
            series["values"] = series["values"][skipped:]
    return made


def _before_the_record(answer: TimelineOut) -> int:
    """The bins before the first that is known, so that a new server's charts are no slivers."""
    known = [
        at for gpu in answer["gpus"] for at, mib in enumerate(gpu["used_mib"]) if mib is not None
    ]
    return max(0, min([*known, len(answer["times"]) - LEAST_BINS]))


def memory_of(gpu: str) -> str:
    return f"memory-{gpu}"


def load_of(gpu: str) -> str:
    return f"load-{gpu}"


def query(hours: int, since: float | None, now: float) -> dict[str, Any]:
    """The query for the last hours; of these, for what is new after `since`."""
    begin = min(max(now - hours * 3600, since or 0.0), now)
    return {"since": datetime.fromtimestamp(begin, UTC).isoformat(), "step_s": HOURS[hours]}


def _memory(answer: TimelineOut, gpu: GpuTimelineOut, hours: int) -> Chart:
    count = len(answer["times"])
    series: list[Series] = [_job(job, count) for job in gpu["jobs"]]
    if any(gpu["external_mib"]):
        external = _series("external processes", gpu["external_mib"], "area", stack=True)
        series.append({**external, "quiet": True})
    total = gpu["memory_mib"]
    limits: list[Limit] = [{"name": f"total {memory(total)}", "value": total}] if total else []
    marks = _marks(gpu["marks"], OF_MEMORY)
    most = max((value for value in gpu["used_max_mib"] if value is not None), default=None)
    facts = [f"at most {memory(most)} of {memory(total)} used", _names(gpu["jobs"])]
    return {
        "title": "Memory by job",
        "summary": _summary(f"Memory of GPU {gpu['index']}", hours, facts, marks),
        "unit": "MiB",
        "span_s": hours * 3600,
        "times": answer["times"],
        "series": [*series, _series("promised", gpu["promised_mib"], "step")],
        "limits": limits,
        "marks": marks,
    }


def _job(job: JobSeriesOut, count: int) -> Series:
    first = job["first"]
    values = [None] * first + job["used_mib"]
    values += [None] * (count - len(values))
    short = clean(f"{job['label']} {job['user']}") if job["id"] is not None else "other jobs"
    name = short if job["name"] == "-" else f"{short} {clean(job['name'])}"
    made: Series = {**_series(name, values, "area", stack=True), "short": short}
    if job["id"] is not None:
        made["job"] = job["id"]
    return made


def _series(name: str, values: Values, kind: str, stack: bool = False) -> Series:
    return {"name": name, "values": values, "kind": kind, "stack": stack}


def _risk_limit(sm_active: float) -> Limit:
    return {"name": f"risk limit {fraction(sm_active)}", "value": sm_active}


def _load(answer: TimelineOut, gpu: GpuTimelineOut, hours: int) -> Chart:
    marks = _marks(gpu["marks"], OF_LOAD)
    known = [value for value in gpu["sm_active"] if value is not None]
    mean = sum(known) / len(known) if known else None
    most = max((value for value in gpu["sm_active_max"] if value is not None), default=None)
    facts = [f"{fraction(mean)} in the mean, at most {fraction(most)}"]
    return {
        "title": "SM activity",
        "summary": _summary(f"SM activity of GPU {gpu['index']}", hours, facts, marks),
        "unit": "",
        "span_s": hours * 3600,
        "times": answer["times"],
        "series": [
            _series("mean", gpu["sm_active"], "area"),
            _series("highest", gpu["sm_active_max"], "step"),
        ],
        "limits": [_risk_limit(answer["limits"]["sm_active"])],
        "marks": marks,
    }


def _marks(marks: Iterable[MarkOut], shown: dict[str, str]) -> list[Tick]:
    return [
        {
            "at": mark["at"],
            "job": mark["job"],
            "kind": mark["kind"],
            "word": shown[mark["kind"]],
            "text": _words(mark),
        }
        for mark in marks
        if mark["kind"] in shown
    ]


def _words(mark: MarkOut) -> str:
    who = f"{mark['label']} {mark['user']}" if mark["job"] is not None else ""
    return clean(f"{who} {mark['text']}".strip())


def _names(jobs: Sequence[JobSeriesOut]) -> str:
    names = [clean(f"{job['label']} of {job['user']}") for job in jobs if job["id"] is not None]
    if not names:
        return "no jobs"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"jobs {', '.join(names[:MOST_NAMED])}{more}"


def _summary(title: str, hours: int, facts: Sequence[str], marks: Sequence[Tick]) -> str:
    counts = Counter(mark["word"] for mark in marks)
    happened = [f"{word}: {count}" for word, count in counts.items()]
    return f"{title} in the last {hours} h: {'; '.join([*facts, *happened])}."


WORDS = OF_MEMORY | OF_LOAD


def memory_chart(answer: JobTimelineOut, job: JobOut) -> Chart:
    """What it held on each GPU, beside what it was promised, and its estimate."""
    series: list[Series] = []
    for gpu in answer["gpus"]:
        name = _name(gpu, answer["gpus"])
        own = _series(f"used by it{name}", gpu["used_mib"], "area")
        series.append({**own, "job": answer["id"]})
        series.append(_series(f"used by all on the GPU{name}", gpu["gpu_used_mib"], "line"))
    used = job["memory"]
    declared, estimate = used["declared_mib"], used["estimate_mib"]
    limits: list[Limit] = []
    if promised := declared or used["estimate_high"] or estimate:
        how = "declared" if declared else "estimated"
        limits.append({"name": f"promised {memory(promised)}, as {how}", "value": promised})
    if estimate and not declared and estimate != promised:
        limits.append({"name": f"estimate {memory(estimate)}", "value": estimate})
    return _chart("Memory per GPU", "MiB", answer, series, limits)


def load_chart(answer: JobTimelineOut) -> Chart:
    """The SM activity of its GPUs, by all that ran there."""
    series = [
        _series(f"SM activity{_name(gpu, answer['gpus'])}", gpu["sm_active"], "line")
        for gpu in answer["gpus"]
    ]
    limit = answer["limits"]["sm_active"]
    limits = [_risk_limit(limit)] if limit <= 1 else []
    return _chart("SM activity of its GPUs", "", answer, series, limits)


def metric_of(name: str) -> str:
    return f"metric-{name}"


def metric_chart(name: str, curve: CurveOut, job: int) -> Chart:
    """What the job reported, when it did."""
    return {
        "title": name,
        "unit": "",
        "times": curve["times"],
        "series": [{**_series(name, [*curve["values"]], "points"), "job": job}],
        "limits": [],
        "marks": [],
    }


def _chart(
    title: str, unit: str, answer: JobTimelineOut, series: list[Series], limits: list[Limit]
) -> Chart:
    marks = [mark for gpu in answer["gpus"] for mark in gpu["marks"] if mark["kind"] in WORDS]
    told = {(mark["at"], mark["kind"]): clean(mark["text"]) for mark in marks}
    return {
        "title": title,
        "unit": unit,
        "times": answer["times"],
        "until": datetime.fromisoformat(answer["until"]).timestamp(),
        "series": series,
        "limits": limits,
        "marks": [
            {"at": at, "job": answer["id"], "text": text, "kind": kind, "word": WORDS[kind]}
            for (at, kind), text in told.items()
        ],
    }


def _name(gpu: JobGpuTimelineOut, gpus: Sequence[JobGpuTimelineOut]) -> str:
    """Which one it is, if there are several."""
    which = gpu["id"] if gpu["index"] is None else gpu["index"]
    return f", GPU {which}" if len(gpus) > 1 else ""
