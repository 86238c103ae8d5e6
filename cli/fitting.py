"""Answers that are too long for who asked, made short enough: JSON with less in it, which says how
much it lacks."""

from __future__ import annotations

import json
from typing import Any

LEFT_OUT = "left_out"
NOTE = 24  # characters that a field and its entry in `left_out` take besides the field's name twice


def written(value: object) -> str:
    """Its JSON, as short as it can be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fitted(value: Any, room: int) -> Any:
    """The value if its JSON has room, or else as much of it as has; None if nothing has.

    Of a list, the first items are kept, and `left_out`, beside it, says how many were not. Large
    fields give way to small ones.
    """
    if len(written(value)) <= room:
        return value
    if isinstance(value, dict):
        return _fields(value, room)
    if isinstance(value, list):
        return _first(value, room)
    return _beginning(value, room) if isinstance(value, str) else None


def _fields(value: dict[str, Any], room: int) -> dict[str, Any] | None:
    room -= len(written({LEFT_OUT: {}})) + sum(2 * len(written(name)) + NOTE for name in value)
    smallest_first = sorted(value, key=lambda name: len(written(value[name])))
    short: dict[str, Any] = {}
    for number, name in enumerate(smallest_first):
        part = fitted(value[name], room // (len(value) - number))
        if part is not None:
            short[name] = part
            room -= len(written(part))
    kept = {name: short[name] for name in value if name in short}
    lacking = {name: _lacking(whole, short.get(name)) for name, whole in value.items()}
    noted = {name: count for name, count in lacking.items() if count}
    return (kept | ({LEFT_OUT: noted} if noted else {})) if kept else None


def _lacking(whole: object, part: object) -> int:
    """How many items are not there; something that is no list is one."""
    if isinstance(whole, list):
        return len(whole) - len(part) if isinstance(part, list) else len(whole)
    return int(part is None)


def _first(items: list[Any], room: int) -> list[Any] | None:
    left, kept = room - len("[]"), 0
    for item in items:
        left -= len(written(item)) + 1
        if left < -1:  # the last item has no comma
            break
        kept += 1
    if kept or not items:
        return items[:kept] if room >= len("[]") else None
    part = fitted(items[0], room - len("[]"))
    return None if part is None else [part]


def _beginning(text: str, room: int) -> str | None:
    kept = room
    while kept > 0:
        short = f"{text[:kept]}… ({len(text) - kept} more characters)"
        excess = len(written(short)) - room
        if excess <= 0:
            return short
        kept -= excess
    return None
