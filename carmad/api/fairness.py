"""Who has used how much, who goes first, and who may use how much."""

from __future__ import annotations

import grp
import logging
import pwd
from collections import Counter
from itertools import takewhile
from typing import Annotated

from fastapi import Path
from pydantic import Field, StringConstraints
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, answer, resource
from carmad.api.requests import Body
from carmad.api.wire import SCHEMA, iso, pick
from carmad.core.gpus.sharing import label
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Place
from carmad.core.jobs.spec import Owner
from carmad.core.messages import LimitRequested
from carmad.core.rules.limits import DEFAULT, Limit, Period, Subject
from carmad.core.rules.share import HOUR_S, NOBODY
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.problems import NotFound
from carmad.options import MAX_GPUS
from carmad.threads import run_in_threadpool

log = logging.getLogger(__name__)

router = resource()
MAX_GPU_HOURS = 1e9
MAX_JOBS = 1_000_000_000

SubjectName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)]

MOST_CHANGES = 100

SHOWN_S = 36.0  # users below this are left out, unless there is something else to show


class ShareOut(TypedDict):
    user: str
    group: str  # that the user shares with; "": none
    weight: float
    gpu_hours: float  # used recently, also by jobs without GPUs: halved with every half-life
    gpus: float  # held now, shared ones in part
    host_gpus: float  # GPUs that the user's running jobs without GPUs count as
    rank: int  # in line, among users; the lowest goes first, equal ones go by arrival
    waiting: int  # jobs
    urgent_gpu_hours: float  # used by urgent jobs in the last seven days


class SharesOut(TypedDict):
    schema: int
    enabled: bool
    half_life_days: float
    band_gpu_hours: float  # users whose use differs by less have the same rank
    urgent_gpu_hours: float  # that each user may use for urgent jobs in seven days
    users: list[ShareOut]  # by rank


class LimitOut(TypedDict):
    subject: str  # a user, "@group" or "default"
    uid: int | None  # of the user: a later one of the name has no part in it
    gpus: int | None
    gpu_hours: float | None
    per: str  # of the GPU-hours: day, week or month
    jobs: int | None
    booking: float | None  # GPU-hours of bookings that are not over; None: no bookings
    set_by: Annotated[str | None, lambda it: it.by]  # None: the settings
    set_at: Annotated[str | None, lambda it: it.at]


class LimitedOut(LimitOut):
    gpus_held: int
    gpu_hours_used: float | None
    gpu_hours_booked: float


class LimitsOut(TypedDict):
    schema: int
    limits: list[LimitedOut]


class LimitChangesOut(TypedDict):
    schema: int
    limit: LimitedOut
    changes: list[LimitOut]  # the newest first; for administrators


class LimitIn(Body):
    """`subject`: a user, "@group" or "default". What is not given stays as it is."""

    subject: SubjectName
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    gpu_hours: Annotated[float, Field(ge=0, le=MAX_GPU_HOURS)] | None = None
    per: Period = "week"
    jobs: Annotated[int, Field(ge=0, le=MAX_JOBS)] | None = None
    booking: Annotated[float, Field(ge=0, le=MAX_GPU_HOURS)] | None = None
    clear: bool = False


@router.get("/share", responses={200: {"model": SharesOut}})
async def share(call: Caller) -> Response:
    """Each user's recent use, and who goes first. Everyone may see it: an order that
    cannot be checked is not fair."""
    return answer(shares_out(await call.service.scene()))


@router.get("/limits", responses={200: {"model": LimitsOut}})
async def limits(call: Caller) -> Response:
    """All limits, and what is used of them."""
    return answer(limits_out(await call.service.scene()))


@router.get("/limits/{subject}", responses={200: {"model": LimitChangesOut}})
async def limit(call: Caller, subject: Annotated[str, Path(max_length=256)]) -> Response:
    """The limit that applies to a user, "@group" or "default", and how it was changed."""
    return await _limit_answer(call, subject)


@router.post("/limits", responses={200: {"model": LimitChangesOut}})
async def set_limit(call: Caller, body: LimitIn) -> Response:
    """Set a limit, or clear it. In force at once; for administrators."""
    call.require_admin("set limits")
    uid = None if body.clear else await run_in_threadpool(_uid_of, body.subject)
    if body.subject.startswith("@") and body.jobs is not None:
        raise CarmaError(
            "a group has no limit of waiting jobs", "Set it for its users, or for default."
        )
    now = call.service.now()
    limit = Limit(**body.model_dump(exclude={"clear"}), by=call.peer.user, at=now, uid=uid)
    if limit.empty is not body.clear:
        raise CarmaError("a limit is set or cleared", "Give a number, or clear, not both.")
    await call.request(LimitRequested(now, limit, body.clear))
    log.info("%s %s: %s", call.peer.user, "clears the limit" if body.clear else "sets", limit)
    return await _limit_answer(call, body.subject)


async def _limit_answer(call: Call, subject: str) -> Response:
    scene, store = await call.service.scene(), call.service.store
    changes = (
        await run_in_threadpool(store.limit_changes, subject, MOST_CHANGES)
        if call.peer.admin
        else []
    )
    out: LimitChangesOut = {
        "schema": SCHEMA,
        "limit": limit_status_out(await run_in_threadpool(_subject, subject, scene), scene),
        "changes": [pick(LimitOut, each) for each in changes],
    }
    return answer(out)


def _uid_of(subject: str) -> int | None:
    """Of a user: a limit is of the account that has the name when it is set. Raises NotFound for a
    user or group that this machine does not know."""
    try:
        if subject.startswith("@"):
            grp.getgrnam(subject[1:])
        elif subject != DEFAULT:
            return pwd.getpwnam(subject).pw_uid
        return None
    except (KeyError, ValueError):
        kind = "group" if subject.startswith("@") else "user"
        raise NotFound(
            f"this machine has no {kind} {subject.removeprefix('@')!r:.80}",
            "Name a user, a group as @NAME, or default.",
        ) from None


def _subject(name: str, scene: Scene) -> Subject:
    """Of a user, the account that has the name now, or else the one that has the limit."""
    try:
        uid = _uid_of(name)
    except NotFound:
        known = scene.limits.get(name)
        uid = known.uid if known else None
        if uid is None and not name.startswith("@"):
            uid = NOBODY
    return name if uid is None else Owner(uid, name)


def shares_out(scene: Scene) -> SharesOut:
    settings, shares = scene.view.settings.fairness, scene.shares
    waiting = Counter[Owner]()
    for job in scene.line:
        waiting[job.spec.owner] += job.tasks
    users: list[ShareOut] = [
        {
            "user": owner.user,
            "group": shares.group(owner).removeprefix("@"),
            "weight": settings.weights.get(owner.user, 1.0),
            "gpu_hours": round(shares.usage_s(owner, scene.now) / HOUR_S, 3),
            "gpus": round(account.rate, 3),
            "host_gpus": round(account.host_rate, 3),
            "rank": shares.rank(owner),
            "waiting": waiting[owner],
            "urgent_gpu_hours": round(shares.urgent_s(owner, scene.now) / HOUR_S, 3),
        }
        for owner, account in shares.accounts.items()
        if account.rate
        or account.host_rate
        or account.urgent
        or waiting[owner]
        or shares.usage_s(owner, scene.now) >= SHOWN_S
    ]
    return {
        "schema": SCHEMA,
        "enabled": settings.enabled is not False,
        "half_life_days": settings.half_life_days,
        "band_gpu_hours": settings.band_hours * len(scene.gpus),
        "urgent_gpu_hours": settings.urgent_gpu_hours,
        "users": sorted(users, key=lambda each: (each["rank"], each["user"])),
    }


def limits_out(scene: Scene) -> LimitsOut:
    """The default first, with what the settings say."""
    named = [_whose(limit) for _, limit in sorted(scene.limits.items()) if limit.subject != DEFAULT]
    return {
        "schema": SCHEMA,
        "limits": [limit_status_out(each, scene) for each in (DEFAULT, *named)],
    }


def _whose(limit: Limit) -> Subject:
    if limit.subject.startswith("@"):
        return limit.subject
    return Owner(NOBODY if limit.uid is None else limit.uid, limit.subject)


def limit_status_out(subject: Subject, scene: Scene) -> LimitedOut:
    """The limit that applies to the subject, who set it, and what is used of it."""
    quotas = scene.gate.quotas
    limit = quotas.of(subject)
    known = scene.limits.get(limit.subject)
    if known and isinstance(subject, Owner) and not known.is_of(subject):
        known = None
    counted = subject != DEFAULT and limit.gpu_hours is not None
    hours = None if not counted else quotas.hours_used(subject, limit.per)
    return pick(
        LimitedOut,
        limit,
        set_by=known.by if known else None,
        set_at=iso(known.at) if known else None,
        gpus_held=quotas.gpus_held(subject),
        gpu_hours_used=hours if hours is None else round(hours, 4),
        gpu_hours_booked=round(booking_hours(subject, scene), 4),
    )


def booking_hours(subject: Subject, scene: Scene) -> float:
    """GPU-hours of the bookings that count against the subject's limit, and are not over."""
    if isinstance(subject, Owner):
        own = (each for each in scene.reservations if each.admits(subject))
        booked = (each for each in own if subject.user in each.charged)
    else:
        booked = (each for each in scene.reservations if subject in each.charged)
    return sum(each.gpu_s_left(scene.now) for each in booked) / HOUR_S


def overtaken(job: Job, scene: Scene) -> str:
    """Which job is before it in line because it is urgent or for a fair share, although it came
    later; "" if none is."""
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
    other, own = ahead.spec.owner, job.spec.owner
    return (
        f"job {label(ahead)} goes first: {other.user} has used {_hours(other, scene)} recently,"
        f" and {own.user} {_hours(own, scene)}; that changes while they use GPUs"
    )


def _for_its_urgency(first: Place, second: Place) -> bool:
    return first[0] == second[0] and first[1] < second[1] and first[-2:] > second[-2:]


def _for_its_share(first: Place, second: Place) -> bool:
    (*equal, rank, at, id), (*its_equal, its_rank, its_at, its_id) = first, second
    return equal == its_equal and rank < its_rank and (at, id) > (its_at, its_id)


def _hours(owner: Owner, scene: Scene) -> str:
    return f"{scene.shares.usage_s(owner, scene.now) / HOUR_S:.3g} GPU-h"
