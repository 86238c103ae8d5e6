"""The daemon's clock: wall-clock time that never jumps while an attempt runs."""

from __future__ import annotations

import time
from pathlib import Path


def boottime() -> float:
    """Seconds since boot, including suspends. Nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wall_ahead() -> float:
    """How far the wall clock is ahead of `boottime` now, in seconds."""
    return time.time() - boottime()


class Clock:
    """Unix seconds. The wall clock is read once, here or by an earlier daemon (`ahead_s`), and
    advanced by `boottime` from then on."""

    def __init__(self, ahead_s: float | None = None) -> None:
        self._ahead_s = wall_ahead() if ahead_s is None else ahead_s

    def __call__(self) -> float:
        return self._ahead_s + boottime()
