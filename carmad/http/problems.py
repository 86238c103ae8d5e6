"""Errors of the HTTP API: CarmaErrors with a status and a stable code."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from carmad.engine.inbox import Stopping
from carmad.errors import CarmaError
from carmad.http.service import Unavailable
from carmad.store.sql import StoreFull


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


def headers(error: CarmaError) -> dict[str, str]:
    return {"retry-after": str(ceil(error.after_s))} if isinstance(error, TooMany) else {}


def status_and_code(error: CarmaError) -> tuple[int, str]:
    if isinstance(error, ApiError):
        return error.status, error.code
    if isinstance(error, (StoreFull, Stopping, Unavailable)):
        return 503, "unavailable"
    return ApiError.status, ApiError.code


def invalid(errors: Sequence[Any]) -> str:
    """What is wrong with a request: pydantic's errors, the first few."""
    return "; ".join(map(_problem, errors[:5]))


def _problem(problem: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in ("body", "query", "path"))
    if problem["type"] == "json_invalid":
        return f"the body is not JSON (at character {where})"
    if problem["type"] == "string_pattern_mismatch":
        return f"{where}: it is empty, or has an invalid character"
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
