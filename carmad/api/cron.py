"""What is left of `carma cron`: the crontabs that it had. Nothing runs them any more."""

from __future__ import annotations

from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Caller, answer, resource
from carmad.api.wire import SCHEMA
from carmad.threads import run_in_threadpool

router = resource("/cron")


class CronOut(TypedDict):
    schema: int
    user: str
    text: str  # "": there is none


@router.get("", responses={200: {"model": CronOut}})
async def crontab(call: Caller) -> Response:
    """The crontab that the caller had, as text. It is only kept to be read: nothing runs it."""
    user, uid = call.peer.user, call.peer.uid
    text = await run_in_threadpool(call.service.store.crontab, user, uid)
    out: CronOut = {"schema": SCHEMA, "user": user, "text": text}
    return answer(out)
