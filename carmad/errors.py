"""The one base error of CARMA: what went wrong, and what to do about it; and how pydantic's are
explained.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class CarmaError(Exception):
    """Shown to people as two lines, the message and the hint, never as a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Hopeless(CarmaError):
    """A restart would fail in the same way: somebody must repair something first."""


def explain_invalid(errors: Sequence[Any]) -> str:
    """The first few of pydantic's errors, as what is wrong with a request."""
    return "; ".join(map(_problem, errors[:5]))


def _problem(problem: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in ("body", "query", "path"))
    if problem["type"] == "json_invalid":
        return f"the body is not JSON (at character {where})"
    if problem["type"] == "string_pattern_mismatch":
        return f"{where}: it is empty, or has an invalid character"
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
