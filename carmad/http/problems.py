"""Errors of the HTTP API: CarmaErrors with a status and a stable code, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.engine.inbox import Stopping
from carmad.errors import CarmaError
from carmad.http.invalid import explain_invalid
from carmad.store.database import StoreFull


class ErrorOut(TypedDict):
    error: str
    hint: str
    code: str


# One has the shape, and the others refer to it: FastAPI would read it anew for each path.
_REFERENCE = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Invalid request", "model": ErrorOut},
    **{
        status: {"description": description, "content": _REFERENCE}
        for status, description in (
            (403, "Not permitted for this user"),
            (404, "Not found"),
            (408, "The request took too long to arrive"),
            (409, "Not possible in the current state, or a limit is reached"),
            (413, "Too large"),
            (422, "Malformed request"),
            (429, "Too many requests; nothing was done: try again later"),
            (503, "Temporarily unavailable: the disk is full, or carmad is busy"),
        )
    },
}


class ApiError(CarmaError):
    status = 400
    code = "bad_request"

    def __init__(self, message: str, hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint)
        if code is not None:
            self.code = code


class Forbidden(ApiError):
    status = 403
    code = "forbidden"


class NotFound(ApiError):
    status = 404
    code = "not_found"


class Conflict(ApiError):
    status = 409
    code = "conflict"


class TooLarge(ApiError):
    status = 413
    code = "too_large"


class TooSlow(ApiError):
    status = 408


class TooMany(ApiError):
    """Nothing was done: the same request may be repeated after `after_s`."""

    status = 429
    code = "too_many"

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message, "Send fewer: a single `carma wait` can wait for many jobs.")
        self.after_s = after_s


class Unavailable(ApiError):
    """The daemon cannot do it now, but may be able to later."""

    status = 503
    code = "unavailable"


def refusal(
    status: int, message: str, hint: str, code: str, headers: Mapping[str, str] | None = None
) -> Response:
    error: ErrorOut = {"error": message, "hint": hint, "code": code}
    return Response(to_json(error), status, headers, media_type="application/json")


def refusal_of(error: CarmaError) -> Response:
    status, code, headers = ApiError.status, ApiError.code, dict[str, str]()
    if isinstance(error, ApiError):
        status, code = error.status, error.code
    elif isinstance(error, (StoreFull, Stopping)):
        status, code = Unavailable.status, Unavailable.code
    if isinstance(error, TooMany):
        headers["retry-after"] = str(ceil(error.after_s))
    return refusal(status, error.message, error.hint, code, headers)


async def answer_problem(request: Request, error: Exception) -> Response:
    """The answer to a request that raised `error`."""
    match error:
        case CarmaError():
            return refusal_of(error)
        case RequestValidationError():
            return refusal(422, explain_invalid(error.errors()), "", "bad_request")
        case HTTPException():
            code = "not_found" if error.status_code == 404 else "bad_request"
            message = f"{error.detail}: {request.method} {request.scope['path']:.200}"
            return refusal(error.status_code, message, "", code, error.headers)
    hint = "This is a bug in CARMA; see the daemon's log."
    return refusal(500, f"carmad failed: {type(error).__name__}", hint, "internal")
