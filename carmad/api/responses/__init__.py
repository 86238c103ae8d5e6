"""What the server answers, by subject. Each shape is checked by mypy where it is built, not at run
time."""

from __future__ import annotations

from typing_extensions import TypedDict

SCHEMA = 1  # raised when a field changes its meaning or goes away


class ErrorOut(TypedDict):
    error: str
    hint: str
    code: str
