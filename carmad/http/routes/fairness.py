"""Who has used how much."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from carmad.api.fairness import shares_out
from carmad.api.responses.fairness import SharesOut
from carmad.http.answers import PROBLEMS, Asked, answer

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)


@router.get("/share", responses={200: {"model": SharesOut}})
async def share(call: Asked) -> Response:
    """What each user has used of late, and who goes first. Everyone may see it: an order that
    cannot be checked is not fair."""
    return answer(shares_out(await call.service.scene()))
