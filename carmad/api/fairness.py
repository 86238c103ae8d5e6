"""Fair shares and limits, from the core's accounts to the wire, and in words."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

from carmad.api.render import label
from carmad.api.responses import SCHEMA
from carmad.api.responses.fairness import LimitedOut, LimitOut, LimitsOut, ShareOut, SharesOut
from carmad.api.times import iso
from carmad.core.line import Place
from carmad.core.quota import DEFAULT, Limit
from carmad.core.scene import Scene
from carmad.core.share import HOUR_S
from carmad.core.types import Job

SHOWN_S = 36.0  # who has used less is left out, unless there is something else to show


def shares_out(scene: Scene) -> SharesOut:
    settings, shares = scene.view.settings.fairness, scene.shares
    waiting = Counter[str]()
    for job in scene.waiting():
        waiting[job.spec.user] += job.tasks
    users: list[ShareOut] = [
        {
            "user": user,
            "group": shares.group(user).removeprefix("@"),
            "weight": settings.weights.get(user, 1.0),
            "gpu_hours": round(shares.used_s(user, scene.now) / HOUR_S, 3),
            "gpus": round(account.rate, 3),
            "host_gpus": round(account.host_rate, 3),
            "rank": shares.rank(user),
            "waiting": waiting[user],
            "urgent_gpu_hours": round(shares.urgent_s(user, scene.now) / HOUR_S, 3),
        }
        for user, account in shares.accounts.items()
        if account.rate
        or account.host_rate
        or account.urgent
        or waiting[user]
        or shares.used_s(user, scene.now) >= SHOWN_S
    ]
    return {
        "schema": SCHEMA,
        "enabled": settings.enabled is not False,
        "half_life_days": settings.half_life_days,
        "urgent_gpu_hours": settings.urgent_gpu_hours,
        "users": sorted(users, key=lambda each: (each["rank"], each["user"])),
    }


def limits_out(scene: Scene) -> LimitsOut:
    """The default first, with what the settings say."""
    named = sorted(scene.limits.keys() - {DEFAULT})
    return {"schema": SCHEMA, "limits": [limited_out(each, scene) for each in (DEFAULT, *named)]}


def limited_out(subject: str, scene: Scene) -> LimitedOut:
    """The limit that applies to the subject, who set it, and what is used of it."""
    quotas = scene.quotas
    limit, known = quotas.of(subject), scene.limits.get(subject)
    counted = subject != DEFAULT and limit.gpu_hours is not None
    hours = None if not counted else quotas.hours_used(subject, limit.per)
    return {
        **limit_out(limit),
        "set_by": known.by if known else None,
        "set_at": iso(known.at) if known else None,
        "gpus_held": quotas.gpus_held(subject),
        "gpu_hours_used": hours if hours is None else round(hours, 4),
    }


def limit_out(limit: Limit) -> LimitOut:
    return {
        "subject": limit.subject,
        "gpus": limit.gpus,
        "gpu_hours": limit.gpu_hours,
        "per": limit.per,
        "jobs": limit.jobs,
        "set_by": limit.by,
        "set_at": iso(limit.at),
    }


def overtaken(job: Job, scene: Scene) -> str:
    """Whose job is before it in line for being urgent or for a fair share, though it came later;
    "": nobody's."""
    line = zip(scene.line, scene.places, strict=True)
    before = list(takewhile(lambda each: job.id not in each[0].ids, line))
    mine = next(iter(scene.places[len(before) :]), None)
    if mine is None:
        return ""
    if urgent := next((it for it, its in before if _for_its_urgency(its, mine)), None):
        return f"job {label(urgent)} goes first: it is urgent"
    ahead = next((it for it, its in before if _for_its_share(its, mine)), None)
    if ahead is None:
        return ""
    other, user = ahead.spec.user, job.spec.user
    return (
        f"job {label(ahead)} goes first: {other} has used {_hours(other, scene)} of late,"
        f" and {user} {_hours(user, scene)}"
    )


def _for_its_urgency(first: Place, second: Place) -> bool:
    return first[0] == second[0] and first[1] < second[1] and first[-2:] > second[-2:]


def _for_its_share(first: Place, second: Place) -> bool:
    (*equal, rank, at, id), (*its_equal, its_rank, its_at, its_id) = first, second
    return equal == its_equal and rank < its_rank and (at, id) > (its_at, its_id)


def _hours(user: str, scene: Scene) -> str:
    return f"{scene.shares.used_s(user, scene.now) / HOUR_S:.3g} GPU-h"
