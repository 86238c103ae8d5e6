"""For whom a job is suspended, and when it is expected back."""

from __future__ import annotations

import re
from datetime import datetime
from math import inf

from carmad.api.outlook import SOON_S, foresee
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.placing.outlook import likely_s
from carmad.core.scene import Scene
from carmad.readable import duration
from carmad.words import clock


def away(job: Job, scene: Scene, whose: str) -> str:
    """Of a suspended job that nobody holds. `whose`: "your", or "its" for others."""
    assert job.suspension
    why = job.suspension.why
    if found := re.search(r"\bjob (\d+)", why):
        other = scene.live.get(JobId(int(found[1])))
        name = f"job {label(other)}" if other else "a job"
        why = f"for {name}{_against(other, job, scene.now, whose)}"
    said = f"suspended {why}" if why.startswith("for ") else f"suspended: {why}"
    back = _back(job, scene)
    return f"{said}; {back}" if back else said


def _against(other: Job | None, job: Job, now: float, whose: str) -> str:
    if other is None:
        return " that has ended"
    first = ", which is urgent" if other.spec.urgent else ""
    first = ", which is at a terminal" if other.spec.interactive else first
    left_s, own_s = likely_s(other, now), likely_s(job, now)
    if max(left_s, own_s) < inf:
        return f"{first} ({duration(left_s)} left against {whose} {duration(own_s)})"
    return first or ", which goes first"


def _back(job: Job, scene: Scene) -> str:
    """When; "" if nobody knows."""
    found = foresee(scene).get(job.id)
    if found is None or found.likely.at == inf:
        return ""
    if found.likely.at - scene.now < SOON_S:
        return "back as soon as a GPU suits it"
    if found.latest.at < inf:
        return f"back by {_clock(found.latest.at, scene.now)}"
    return f"back at about {_clock(found.likely.at, scene.now)}"


def _clock(at: float, now: float) -> str:
    """Without the date, today."""
    moment = datetime.fromtimestamp(at).astimezone()
    today = datetime.fromtimestamp(now).astimezone().date()
    return f"{moment:%H:%M}" if moment.date() == today else clock(at)
