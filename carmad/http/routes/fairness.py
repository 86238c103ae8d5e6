"""Who has used how much, and who may."""

from __future__ import annotations

import grp
import logging
import pwd
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from carmad.api.fairness import limit_out, limited_out, limits_out, shares_out
from carmad.api.requests import LimitIn
from carmad.api.responses import SCHEMA
from carmad.api.responses.fairness import LimitChangesOut, LimitsOut, SharesOut
from carmad.core.messages import LimitRequested
from carmad.core.quota import DEFAULT, Limit
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http.answers import PROBLEMS, Asked, Call, answer
from carmad.http.problems import NotFound

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

MOST_CHANGES = 100


@router.get("/share", responses={200: {"model": SharesOut}})
async def share(call: Asked) -> Response:
    """What each user has used of late, and who goes first. Everyone may see it: an order that
    cannot be checked is not fair."""
    return answer(shares_out(await call.service.scene()))


@router.get("/limits", responses={200: {"model": LimitsOut}})
async def limits(call: Asked) -> Response:
    """All limits, and what is used of them."""
    return answer(limits_out(await call.service.scene()))


@router.get("/limits/{subject}", responses={200: {"model": LimitChangesOut}})
async def limit(call: Asked, subject: Annotated[str, Path(max_length=256)]) -> Response:
    """The limit that applies to a user, "@group" or "default", and how it was changed."""
    return await _told(call, subject)


@router.post("/limits", responses={200: {"model": LimitChangesOut}})
async def set_limit(call: Asked, body: LimitIn) -> Response:
    """Set a limit, or clear it. In force at once; for administrators."""
    call.require_admin("set limits")
    if not body.clear:
        await run_in_threadpool(_expect, body.subject)
    if body.subject.startswith("@") and body.jobs is not None:
        raise CarmaError(
            "a group has no limit of waiting jobs", "Set it for its users, or for default."
        )
    now = call.service.now()
    limit = Limit(body.subject, body.gpus, body.gpu_hours, body.per, body.jobs, call.peer.user, now)
    if limit.empty is not body.clear:
        raise CarmaError("a limit is set or cleared", "Give a number, or clear, not both.")
    await call.request(LimitRequested(now, limit, body.clear))
    log.info("%s %s: %s", call.peer.user, "clears the limit" if body.clear else "sets", limit)
    return await _told(call, body.subject)


async def _told(call: Call, subject: str) -> Response:
    scene, store = await call.service.scene(), call.service.store
    changes = (
        await run_in_threadpool(store.limit_changes, subject, MOST_CHANGES)
        if call.peer.admin
        else []
    )
    out: LimitChangesOut = {
        "schema": SCHEMA,
        "limit": limited_out(subject, scene),
        "changes": [limit_out(each) for each in changes],
    }
    return answer(out)


def _expect(subject: str) -> None:
    """Raises NotFound for a user or group that this machine does not know."""
    try:
        if subject.startswith("@"):
            grp.getgrnam(subject[1:])
        elif subject != DEFAULT:
            pwd.getpwnam(subject)
    except KeyError:
        kind = "group" if subject.startswith("@") else "user"
        raise NotFound(
            f"this machine has no {kind} {subject.removeprefix('@')!r:.80}",
            "Name a user, a group as @NAME, or default.",
        ) from None
