"""How long something takes, and waiting for it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300.0  # it only ends a hang: a busy machine may need minutes


def milliseconds(do: Callable[[], object]) -> float:
    """By the wall clock."""
    begun = time.perf_counter()
    do()
    return (time.perf_counter() - begun) * 1000


def fsync_ms() -> float:
    """Of 4 KiB in a new temporary file: no durable commit can be faster."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        return milliseconds(lambda: os.fsync(file.fileno()))


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
