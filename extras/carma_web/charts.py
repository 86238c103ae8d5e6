"""The charts of GPUs and of a job, as `static/charts.js` draws them: what the daemon recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict

from carma_web.hues import Hues, css
from carmad.readable import clean
from cli.text import fraction, memory

if TYPE_CHECKING:
    from carmad.api.job import JobOut
    from carmad.api.jobs import CurveOut
    from carmad.api.timeline import GpuTimelineOut, JobSeriesOut, MarkOut, TimelineOut

HOURS = {1: 60, 6: 60, 24: 120}  # with the width of a bin, in seconds
USUAL_HOURS = 6
SPARK_HOURS, SPARK_STEP_S = 1, 60
MOST_NAMED = 20  # jobs of a chart or in its summary; the others are added up
GOOD, WARN, BAD, LINK, TEXT, SOFT, LINE = (
    f"var(--{name})" for name in ("good", "warn", "bad", "link", "text", "soft", "line")
)
# How events are called and drawn: what starts above what ends, troubles below.
BEGIN, END, TROUBLE = 0.97, 0.9, 0.83
OF_LOAD = {
    "slowed": ("slow-down", WARN, TROUBLE),
    "risky": ("too busy to share", BAD, TROUBLE),
}
OF_MEMORY = {
    "started": ("start", GOOD, BEGIN),
    "resumed": ("takes jobs again", LINK, BEGIN),
    "gpu_back": ("GPU back", TEXT, BEGIN),
    "succeeded": ("end", SOFT, END),
    "cancelled": ("cancelled", WARN, END),
    "retried": ("retry", css(5), END),
    "requeued": ("back in the queue", css(4), END),
    "preempted": ("preempted", LINK, END),
    "drained": ("drained", TEXT, END),
    "failed": ("failure", BAD, TROUBLE),
    "timed_out": ("timed out", WARN, TROUBLE),
    "oom": ("out of memory", css(3), TROUBLE),
    "warned": ("warning", css(1), TROUBLE),
    "gpu_lost": ("GPU lost", TEXT, TROUBLE),
    "external": ("external process", SOFT, TROUBLE),
}
OF_JOB = OF_MEMORY | OF_LOAD

Values = list[float | None]
Kind = Literal["stack", "area", "step", "limit", "points", "events"]
Limit = tuple[str, float]  # its name and value
Events = dict[str, tuple[str, str, float]]


class Series(TypedDict):
    """`stack`: an area on those that follow. `points` are no bins, and may be below zero. Of
    `events`, values are heights in the chart, 0 to 1."""

    name: str
    values: Values
    kind: Kind
    colour: str  # in CSS
    dash: NotRequired[int]  # which dashes its line has, if several are of a colour
    words: NotRequired[dict[int, list[str]]]  # of events: what happened, by bin


class Chart(TypedDict):
    title: str
    summary: NotRequired[str]  # for readers who cannot see it
    unit: str
    times: Sequence[float]  # when each bin begins; the last one is the end
    series: list[Series]  # what is drawn over others comes after them


def query(hours: int, step_s: int, now: float) -> dict[str, Any]:
    """The query for the timeline of the last hours."""
    return {"since": datetime.fromtimestamp(now - hours * 3600, UTC).isoformat(), "step_s": step_s}


def sparks(answer: TimelineOut) -> dict[str, Chart]:
    """The load of each GPU, by its id."""
    made: dict[str, Chart] = {}
    for gpu in answer["gpus"]:
        title = f"SM activity of GPU {gpu['index']} in the last hour, and its limit"
        series = [_series("mean", gpu["sm_active"], "area", SOFT)]
        made[gpu["id"]] = _chart(title, "", answer, series, [_risk_limit(answer)])
    return made


def gpu_charts(answer: TimelineOut, hours: int, hues: Hues) -> dict[str, Chart]:
    """Of the only GPU in the answer."""
    (gpu,) = answer["gpus"]
    return {"memory": _memory(answer, gpu, hours, hues), "load": _load(answer, gpu, hours)}


def _memory(answer: TimelineOut, gpu: GpuTimelineOut, hours: int, hues: Hues) -> Chart:
    count = len(answer["times"])
    named = {job["id"]: job for job in _foremost(gpu["jobs"]) if job["id"] is not None}
    others = [_values(job, count) for job in gpu["jobs"] if job["id"] not in named]
    hue = hues.give(gpu["id"], named)
    stack = [
        _series(_label(job), _values(job, count), "stack", css(hue[id]))
        for id, job in named.items()
    ]
    if others:
        stack.append(_series("other jobs", [*map(_sum, zip(*others, strict=True))], "stack", LINE))
    if any(gpu["external_mib"]):
        stack.append(_series("external processes", gpu["external_mib"], "stack", SOFT))
    total = gpu["memory_mib"]
    most = max((value for value in gpu["used_max_mib"] if value is not None), default=None)
    facts = [f"at most {memory(most)} of {memory(total)} used", _names(gpu["jobs"])]
    return _chart(
        "Memory by job",
        "MiB",
        answer,
        [*reversed(stack), _series("promised", gpu["promised_mib"], "step", TEXT)],
        [(f"total {memory(total)}", total)] if total else [],
        _events(gpu["marks"], answer["times"], OF_MEMORY),
        (f"Memory of GPU {gpu['index']} in the last {hours} h", facts),
    )


def _load(answer: TimelineOut, gpu: GpuTimelineOut, hours: int) -> Chart:
    known = [value for value in gpu["sm_active"] if value is not None]
    mean = sum(known) / len(known) if known else None
    most = max((value for value in gpu["sm_active_max"] if value is not None), default=None)
    facts = [f"{fraction(mean)} in the mean, at most {fraction(most)}"]
    return _chart(
        "SM activity",
        "",
        answer,
        [
            _series("mean", gpu["sm_active"], "area", SOFT),
            _series("highest", gpu["sm_active_max"], "step", TEXT),
        ],
        [_risk_limit(answer)],
        _events(gpu["marks"], answer["times"], OF_LOAD),
        (f"SM activity of GPU {gpu['index']} in the last {hours} h", facts),
    )


def _foremost(jobs: Sequence[JobSeriesOut]) -> Sequence[JobSeriesOut]:
    """In the order in which they came: those that are there last, and of the others those that held
    most."""

    def rank(job: JobSeriesOut) -> tuple[int, float]:
        held = [value for value in job["used_mib"] if value is not None]
        return job["first"] + len(job["used_mib"]), sum(held)

    last = sorted(jobs, key=rank, reverse=True)[:MOST_NAMED]
    return [job for job in jobs if job in last]


def _values(job: JobSeriesOut, count: int) -> Values:
    values = [None] * job["first"] + job["used_mib"]
    return values + [None] * (count - len(values))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _label(job: JobSeriesOut) -> str:
    name = "" if job["name"] == "-" else job["name"]
    return clean(f"{job['label']} {job['user']} {name}".rstrip())


def _series(name: str, values: Values, kind: Kind, colour: str, dash: int = 0) -> Series:
    made: Series = {"name": name, "values": values, "kind": kind, "colour": colour}
    return {**made, "dash": dash} if dash else made


def _risk_limit(answer: TimelineOut) -> Limit:
    limit = answer["limits"]["sm_active"]
    return f"risk limit {fraction(limit)}", limit


def _events(marks: Iterable[MarkOut], times: Sequence[float], shown: Events) -> list[Series]:
    """One series for each kind of event that there was; each event is in its bin."""
    words: dict[str, dict[int, list[str]]] = {}
    for mark in marks:
        if mark["kind"] in shown and (bin := bisect_right(times, mark["at"]) - 1) >= 0:
            words.setdefault(mark["kind"], {}).setdefault(bin, []).append(_words(mark))
    made: list[Series] = []
    for kind, its in words.items():
        name, colour, height = shown[kind]
        values: Values = [height if bin in its else None for bin in range(len(times))]
        made.append({**_series(name, values, "events", colour), "words": its})
    return made


def _words(mark: MarkOut) -> str:
    who = f"{mark['label']} {mark['user']}" if mark["job"] is not None else ""
    at = datetime.fromtimestamp(mark["at"]).strftime("%H:%M:%S")
    return clean(f"{at} {who} {mark['text']}".rstrip())


def _names(jobs: Sequence[JobSeriesOut]) -> str:
    names = [clean(f"{job['label']} of {job['user']}") for job in jobs if job["id"] is not None]
    if not names:
        return "no jobs"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"jobs {', '.join(names[:MOST_NAMED])}{more}"


def _chart(
    title: str,
    unit: str,
    answer: TimelineOut,
    series: Sequence[Series],
    limits: Sequence[Limit] = (),
    events: Sequence[Series] = (),
    told: tuple[str, Sequence[str]] | None = None,
) -> Chart:
    """The last bin is drawn until the end of what was asked for. `told`: the summary's title and
    facts."""
    times = answer["times"]
    bounds = [_series(name, [value] * len(times), "limit", BAD) for name, value in limits]
    for one in (*series, *bounds):
        one["values"] = [*one["values"], *one["values"][-1:]]
    until = datetime.fromisoformat(answer["until"]).timestamp()
    made: Chart = {
        "title": title,
        "unit": unit,
        "times": [*times, max(until, times[-1] + 1)] if times else [],
        "series": [*series, *bounds, *events],
    }
    if told:
        counts = [f"{one['name']}: {sum(map(len, one['words'].values()))}" for one in events]
        made["summary"] = f"{told[0]}: {'; '.join([*told[1], *counts])}."
    return made


# -- of a job


def job_charts(answer: TimelineOut, job: JobOut, hues: Hues) -> dict[str, Chart]:
    """What it held on each GPU, beside what it was promised, and its estimate; and the SM activity
    of its GPUs, by all that ran there."""
    id, count = job["id"], len(answer["times"])
    its = [(gpu, one) for gpu in answer["gpus"] for one in gpu["jobs"] if one["id"] == id]
    if not its:
        return {}
    own = css(hues.give(its[0][0]["id"], [id])[id])
    held: list[Series] = []
    loads: list[Series] = []
    for at, (gpu, part) in enumerate(its):
        which = gpu["id"] if gpu["index"] is None else gpu["index"]
        name = f", GPU {which}" if len(its) > 1 else ""
        held.append(_series(f"used by all on the GPU{name}", gpu["used_mib"], "step", TEXT, at))
        values = _values(part, count)
        held.append(_series(f"used by it{name}", values, "area", own, at))
        loads.append(_series(f"SM activity{name}", gpu["sm_active"], "step", TEXT, at))
    used = job["memory"]
    declared, estimate = used["declared_mib"], used["estimate_mib"]
    bounds: list[Limit] = []
    if promised := declared or used["estimate_high"] or estimate:
        how = "declared" if declared else "estimated"
        bounds.append((f"promised {memory(promised)}, as {how}", promised))
    if estimate and not declared and estimate != promised:
        bounds.append((f"estimate {memory(estimate)}", estimate))
    limit = _risk_limit(answer)
    told = [mark for gpu, _ in its for mark in gpu["marks"] if mark["job"] == id]
    marks = {(mark["at"], mark["kind"]): mark for mark in told}.values()
    return {
        name: _chart(title, unit, answer, series, limits, _events(marks, answer["times"], OF_JOB))
        for name, title, unit, series, limits in (
            ("memory", "Memory per GPU", "MiB", held, bounds),
            ("load", "SM activity of its GPUs", "", loads, [limit] if limit[1] <= 1 else []),
        )
    }


def metric_of(name: str) -> str:
    return f"metric-{name}"


def metric_chart(name: str, curve: CurveOut) -> Chart:
    """What the job reported, when it did."""
    series = [_series(name, [*curve["values"]], "points", LINK)]
    return {"title": name, "unit": "", "times": curve["times"], "series": series}
