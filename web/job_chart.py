"""A job's memory and load over time, as `static/charts.js` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carmad.readable import clean
from cli.format import fraction
from web.timeline import OF_LOAD, OF_MEMORY

if TYPE_CHECKING:
    from carmad.api.job import JobOut
    from carmad.api.timeline import JobGpuTimelineOut, JobTimelineOut, Values

WORDS = OF_MEMORY | OF_LOAD


def memory(answer: JobTimelineOut, job: JobOut) -> dict[str, Any]:
    """What it held on each GPU, beside what it was promised, and its estimate."""
    series = []
    for gpu in answer["gpus"]:
        name = _name(gpu, answer["gpus"])
        series += [
            _series(f"used by it{name}", gpu["used_mib"], "area"),
            _series(f"promised to it{name}", gpu["promised_mib"], "step"),
            _series(f"used by all on the GPU{name}", gpu["gpu_used_mib"], "line"),
        ]
    used = job["memory"]
    ends = {
        "declared": used["declared_mib"],
        "estimate": used["estimate_mib"],
        "at most": used["estimate_high"],
    }
    known = {mib: name for name, mib in reversed(ends.items()) if mib is not None}
    limits = [{"name": name, "value": mib} for mib, name in known.items()]
    return _chart("Memory per GPU", "MiB", answer, series, limits)


def load(answer: JobTimelineOut) -> dict[str, Any]:
    """The SM activity of its GPUs, by all that ran there."""
    series = [
        _series(f"SM activity{_name(gpu, answer['gpus'])}", gpu["sm_active"], "line")
        for gpu in answer["gpus"]
    ]
    limit = answer["limits"]["sm_active"]
    limits = [{"name": f"risk limit {fraction(limit)}", "value": limit}] if limit <= 1 else []
    return _chart("SM activity of its GPUs", "", answer, series, limits)


def _chart(
    title: str,
    unit: str,
    answer: JobTimelineOut,
    series: Sequence[dict[str, Any]],
    limits: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    marks = [mark for gpu in answer["gpus"] for mark in gpu["marks"] if mark["kind"] in WORDS]
    told = {(mark["at"], mark["kind"]): clean(mark["text"]) for mark in marks}
    return {
        "title": title,
        "unit": unit,
        "times": answer["times"],
        "series": series,
        "limits": limits,
        "marks": [
            {"at": at, "text": text, "kind": kind, "word": WORDS[kind]}
            for (at, kind), text in told.items()
        ],
    }


def _series(name: str, values: Values, kind: str) -> dict[str, Any]:
    return {"name": name, "values": values, "kind": kind, "stack": False}


def _name(gpu: JobGpuTimelineOut, gpus: Sequence[JobGpuTimelineOut]) -> str:
    """Which one it is, if there are several."""
    which = gpu["id"] if gpu["index"] is None else gpu["index"]
    return f", GPU {which}" if len(gpus) > 1 else ""
