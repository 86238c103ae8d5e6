"""A test of the mail that this server sends."""

from __future__ import annotations

from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Caller, answer, resource
from carmad.api.wire import SCHEMA
from carmad.threads import run_in_threadpool

router = resource()


class MailOut(TypedDict):
    schema: int
    to: str
    why: str  # it was not taken; "": it was


@router.post("/mail", responses={200: {"model": MailOut}})
async def send_test(call: Caller) -> Response:
    """Send the caller a mail now, as messages about jobs are sent to those who have no addresses
    of their own."""
    service = call.service
    async with service.turns[call.peer.uid], service.slow:
        why = await run_in_threadpool(service.send_test, call.peer.owner)
    out: MailOut = {"schema": SCHEMA, "to": call.peer.user, "why": why}
    return answer(out)
