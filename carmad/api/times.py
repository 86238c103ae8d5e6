"""Times on the wire: ISO 8601, always with a zone."""

from __future__ import annotations

from datetime import UTC, datetime

from carmad.errors import CarmaError


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def iso(at: float | None) -> str | None:
    return None if at is None else stamp(at)


def moment(text: str) -> datetime:
    """Raises ValueError for what has no zone, or is too far away to be written in another one."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("the time needs a zone, such as a final Z")
    if not 1970 <= found.year <= 9000:
        raise ValueError("the year must be one from 1970 to 9000")
    return found


def parse_time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return moment(text).timestamp()
    except ValueError:
        hint = "A time looks like 2026-11-20T23:12:00Z."
        raise CarmaError(f"{text!r:.80} is no time with a zone", hint) from None
