"""The one base error of CARMA: what went wrong, and what to do about it."""

from __future__ import annotations


class CarmaError(Exception):
    """Shown to people as two lines, the message and the hint, never as a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Hopeless(CarmaError):
    """A restart would fail in the same way: somebody must repair something first."""
