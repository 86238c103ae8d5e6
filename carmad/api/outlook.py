"""When a waiting job is expected to start, and whether a job will meet its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from typing_extensions import TypedDict

from carmad.api.reasons import phrase
from carmad.api.wire import iso
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.placing.outlook import (
    FORESEEN,
    NOBODY,
    Forecast,
    Outlook,
    Start,
    forecast,
    outlook,
)
from carmad.core.scene import Scene
from carmad.readable import duration
from carmad.words import clock

SOON_S = 1.0
# A job that waits for one of these does not wait for GPUs alone.
LEFT_OUT = frozenset({"quota", "gpu_hours", "array_limit", "cpus", "host_memory_mib"})
PREVENTED = LEFT_OUT | {"no_account", "held", "suspended", "gpus_unread"}  # not by time alone


class OutlookOut(TypedDict):
    """Whether a job would meet its deadline if no jobs shared GPUs."""

    starts_at: str | None  # null: unknown
    ends_at: str | None
    late_s: float | None  # after its deadline; negative: early
    text: str


class StartOut(TypedDict):
    """When a waiting job is expected to start: nine of ten do from `earliest_at` to `latest_at`;
    `expected_at` is when it would if it shared no GPU. None: unknown; `text` says why."""

    id: int
    label: str
    user: str
    earliest_at: str | None
    expected_at: str | None
    latest_at: str | None
    text: str


class StartsOut(TypedDict):
    schema: int
    starts: list[StartOut]  # in line
    more: int  # jobs that wait behind those


def outlook_out(job: Job, scene: Scene) -> OutlookOut | None:
    """None for a job without a deadline, and for one that has ended."""
    deadline_at = job.spec.deadline_at
    if deadline_at is None or job.ended:
        return None
    found = outlook(job, scene.line, scene.view.gpus, scene.now, scene.running)
    late_s = found.ends_at - deadline_at
    return {
        "starts_at": iso(found.starts_at) if isfinite(found.starts_at) else None,
        "ends_at": iso(found.ends_at) if isfinite(found.ends_at) else None,
        "late_s": round(late_s, 3) if isfinite(late_s) else None,
        "text": _text(job, found, deadline_at, scene),
    }


def _text(job: Job, found: Outlook, deadline_at: float, scene: Scene) -> str:
    now, blocked_by = scene.now, scene.gate.blocker(job)
    if deadline_at <= now:
        return f"its deadline was {duration(now - deadline_at)} ago"
    if job.held:
        return "it is held, so its end is not known"
    told = job.holds_gpus or (blocked_by and blocked_by.code in LEFT_OUT)
    when = "" if told else f" ({_start(found, now)})"
    late_s = found.ends_at - deadline_at
    if isfinite(late_s):
        miss = f"miss its deadline by {duration(late_s)}"
        meet = f"meet its deadline, {duration(-late_s)} before it"
        return f"predicted to {miss if late_s > 0 else meet}{when}"
    if deadline_at < found.starts_at < inf:
        return f"predicted to miss its deadline{when}"
    unknown = "not known how long it runs: give --expect"
    if job.own_s is not None:
        unknown = "it is not known when the jobs ahead of it end"
    return f"whether it meets its deadline is not predicted: {unknown}"


def _start(found: Outlook, now: float) -> str:
    left_s = found.starts_at - now
    return "could start now" if left_s < SOON_S else f"would start in about {duration(left_s)}"


def start_out(job: Job, scene: Scene) -> StartOut | None:
    """When a waiting job is expected to start; None for any other."""
    if job.state not in (JobState.QUEUED, JobState.SUSPENDED):
        return None
    found = foresee(scene).get(job.id)
    blocked_by = scene.gate.blocker(job)
    if blocked_by and blocked_by.code in PREVENTED:
        unknown = phrase(blocked_by)
    elif found is None:
        unknown = f"more than {FORESEEN} jobs are before it"
    else:
        unknown = _endless(found.likely, job, scene) if found.likely.at == inf else ""
    known = None if unknown else found
    return {
        "id": job.id,
        "label": label(job),
        "user": job.spec.user,
        "earliest_at": iso(known.earliest) if known else None,
        "expected_at": iso(known.likely.at) if known else None,
        "latest_at": iso(known.latest.at) if known and isfinite(known.latest.at) else None,
        "text": _when(known, job, scene) if known else f"unknown: {unknown}",
    }


def foresee(scene: Scene) -> Mapping[JobId, Forecast]:
    """When the jobs that wait, or are suspended, are expected on GPUs."""
    given = scene.line, scene.view.gpus, scene.now, scene.running, _shares(scene)
    window_s = scene.view.settings.monitor.window_s
    return scene.memo.recall("starts", forecast, *given, window_s)


def _shares(scene: Scene) -> bool:
    """Whether the policy lets jobs share GPUs: it has refused none for being busy, except to jobs
    that want one alone, such as those that are tried again."""
    for id, made in scene.decisions.items():
        job = scene.live.get(id)
        if job and not job.exclusive and not job.attempts:
            verdicts = made.placement.verdicts
            if any(reason.code == "busy" for each in verdicts for reason in each.refused):
                return False
    return True


def _endless(start: Start, job: Job, scene: Scene) -> str:
    if start.after == NOBODY:
        return f"fewer than {job.spec.gpus} GPUs take jobs"
    other = scene.live.get(start.after)
    return f"job {label(other) if other else start.after} has no known end"


def _when(found: Forecast, job: Job, scene: Scene) -> str:
    earliest, latest = found.earliest, found.latest.at
    soon = earliest - scene.now < SOON_S
    if latest == inf:
        first = "as soon as a GPU suits it" if soon else f"from {clock(earliest)} on"
        return f"{first}; by when is unknown, as {_endless(found.latest, job, scene)}"
    if latest - scene.now < SOON_S:
        return "as soon as a GPU suits it"
    if soon:
        return f"as soon as a GPU suits it, most likely by {clock(latest)}"
    return f"most likely from {clock(earliest)} to {clock(latest)}"
