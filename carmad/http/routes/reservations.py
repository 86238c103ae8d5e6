"""GPUs kept for some users, or for maintenance."""

from __future__ import annotations

import pwd
from collections.abc import Iterable

from fastapi import APIRouter
from starlette.responses import Response

from carmad.api.requests import ReserveIn
from carmad.api.reservations import reservation, reservations_out
from carmad.api.responses import SCHEMA
from carmad.api.responses.reservations import ReservationsOut
from carmad.core.messages import Reserved, Unreserved
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http.answers import PROBLEMS, Asked, Call, answer
from carmad.http.problems import Conflict, NotFound
from carmad.http.routes.gpus import named

router = APIRouter(
    prefix="/v1/reservations",
    responses=PROBLEMS | {200: {"model": ReservationsOut}},
    default_response_class=Response,
)


@router.get("")
async def reservations(call: Asked) -> Response:
    return await _listed(call)


@router.post("")
async def reserve(call: Asked, body: ReserveIn) -> Response:
    """Answers with the new reservation."""
    call.require_admin("reserve GPUs")
    await run_in_threadpool(_require_users, body.users)
    scene, by = await call.service.scene(), call.peer.user
    wanted = await run_in_threadpool(reservation, body, scene, by, named)
    await call.request(Reserved(call.service.now(), wanted))
    if wanted not in (await call.service.scene()).reservations:
        raise Conflict("another reservation was made at the same time", "Try again.")
    return await _listed(call, wanted.id)


@router.post("/{id}/cancel")
async def cancel(call: Asked, id: int) -> Response:
    """Answers with those that remain."""
    call.require_admin("cancel reservations")
    scene = await call.service.scene()
    if id not in {each.id for each in scene.reservations}:
        raise NotFound(f"there is no reservation {id}", "See `carma reserve`.")
    await call.request(Unreserved(call.service.now(), id, call.peer.user))
    return await _listed(call)


async def _listed(call: Call, only: int | None = None) -> Response:
    scene = await call.service.scene()
    found = [each for each in reservations_out(scene) if only in (None, each["id"])]
    out: ReservationsOut = {"schema": SCHEMA, "reservations": found}
    return answer(out)


def _require_users(names: Iterable[str]) -> None:
    """May ask a directory server."""
    for name in names:
        try:
            pwd.getpwnam(name)
        except KeyError:
            raise CarmaError(f"there is no user {name!r:.80}", "Check the name.") from None
