"""Waiting in tests: for as long as a busy machine may need, and no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300.0  # it only ends a hang: machines that run tests can be very busy


def until(
    read: Callable[[], Any],
    what: str = "it",
    within_s: float = PATIENCE_S,
    wanted: Callable[[Any], object] = bool,
) -> Any:
    """The first value that is as wanted."""
    deadline = time.monotonic() + within_s
    while True:
        if wanted(value := read()):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s} s in vain for {what}: {value!r}")
        time.sleep(0.01)
