"""Answers made short: without what is empty, and with as much of the rest as has room. Pure."""

from __future__ import annotations

import json
from typing import Any

from carmad.readable import clean_lines

LEFT_OUT = "left_out"
NOTE = 24  # characters that a field and its entry in `left_out` take besides the field's name twice


def slim(answer: Any) -> Any:
    """Without its empty fields, which are half of a job, and without characters that people who
    read along cannot see."""
    if isinstance(answer, dict):
        kept = {name: slim(value) for name, value in answer.items()}
        return {name: value for name, value in kept.items() if value not in (None, "", [], {})}
    if isinstance(answer, list):
        return [slim(each) for each in answer]
    return clean_lines(answer) if isinstance(answer, str) else answer


def as_json(value: object) -> str:
    """Its JSON, as short as it can be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fit(value: Any, room: int) -> Any:
    """The value if its JSON has room, or else as much of it as has; None if nothing has.

    Of a list, the first items are kept, and `left_out`, beside it, says how many were not. Large
    fields give way to small ones.
    """
    if len(as_json(value)) <= room:
        return value
    if isinstance(value, dict):
        return _fields(value, room)
    if isinstance(value, list):
        return _first(value, room)
    return _beginning(value, room) if isinstance(value, str) else None


def _fields(value: dict[str, Any], room: int) -> dict[str, Any] | None:
    room -= len(as_json({LEFT_OUT: {}})) + sum(2 * len(as_json(name)) + NOTE for name in value)
    smallest_first = sorted(value, key=lambda name: len(as_json(value[name])))
    short: dict[str, Any] = {}
    for number, name in enumerate(smallest_first):
        part = fit(value[name], room // (len(value) - number))
        if part is not None:
            short[name] = part
            room -= len(as_json(part))
    kept = {name: short[name] for name in value if name in short}
    lacking = {name: _lacking(whole, short.get(name)) for name, whole in value.items()}
    left_out = {name: count for name, count in lacking.items() if count}
    return (kept | ({LEFT_OUT: left_out} if left_out else {})) if kept else None


def _lacking(whole: object, part: object) -> int:
    """How many items are not there; something that is no list is one."""
    if isinstance(whole, list):
        return len(whole) - len(part) if isinstance(part, list) else len(whole)
    return int(part is None)


def _first(items: list[Any], room: int) -> list[Any] | None:
    left, kept = room - len("[]"), 0
    for item in items:
        left -= len(as_json(item)) + 1
        if left < -1:  # the last item has no comma
            break
        kept += 1
    if kept or not items:
        return items[:kept] if room >= len("[]") else None
    part = fit(items[0], room - len("[]"))
    return None if part is None else [part]


def _beginning(text: str, room: int) -> str | None:
    kept = room
    while kept > 0:
        short = f"{text[:kept]}… ({len(text) - kept} more characters)"
        excess = len(as_json(short)) - room
        if excess <= 0:
            return short
        kept -= excess
    return None
