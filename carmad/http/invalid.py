"""How pydantic's errors are explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carmad.options import OPTIONS

_WORDS = {
    "string_pattern_mismatch": "is empty or too long, or has a character that is not allowed there",
    "string_unicode": "is not valid UTF-8",
    "missing": "is missing",
    "extra_forbidden": "is not known here",
}


def explain_invalid(errors: Sequence[Any]) -> str:
    """The first few of pydantic's errors, as what is wrong with a request."""
    return "; ".join(map(_problem, errors[:5]))


def _problem(problem: dict[str, Any]) -> str:
    parts = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    where = ".".join(parts) or "the request"
    if where in OPTIONS:  # as who typed it knows it
        where = OPTIONS[where].flag
    if problem["type"] == "json_invalid":
        return f"the body is not JSON (at character {where})"
    if words := _WORDS.get(problem["type"]):
        return f"{where} {words}"
    kind, should, rest = str(problem["msg"]).partition(" should ")  # "Input", "String", …
    return f"{where} should {rest}" if should else f"{where}: {kind.removeprefix('Value error, ')}"
