"""How long something takes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable


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
