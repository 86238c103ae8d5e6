"""What `carma doctor` says, whichever of its parts has looked."""

from __future__ import annotations

from typing_extensions import TypedDict


class CheckOut(TypedDict):
    name: str
    ok: bool | None  # None: it works, and could be better
    detail: str
    hint: str


def verdict(name: str, ok: bool | None, detail: str, hint: str = "") -> CheckOut:
    """`hint`: what to do about it."""
    return {"name": name, "ok": ok, "detail": detail, "hint": hint}
