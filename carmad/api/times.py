"""Times on the wire: ISO 8601, always with a zone."""

from __future__ import annotations

from datetime import UTC, datetime

from carmad.errors import CarmaError


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def iso(at: float | None) -> str | None:
    return None if at is None else stamp(at)


def parse_time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no zone")
        return moment.timestamp()
    except (ValueError, OverflowError):
        hint = "A time looks like 2026-11-20T23:12:00Z."
        raise CarmaError(f"{text!r:.80} is no time with a zone", hint) from None
