"""The daemon's clock: the wall's time, which never jumps while an attempt runs."""

from __future__ import annotations

import time
from pathlib import Path


def boottime() -> float:
    """Seconds since the boot: counted through a suspend, and not to be set by anybody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Of which boot `boottime` tells."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wall_ahead() -> float:
    """How far the wall clock is ahead of `boottime` at this moment, in seconds."""
    return time.time() - boottime()


class Clock:
    """Unix seconds. The wall is read once, or by an earlier daemon (`ahead_s`); from then on it
    is only counted on."""

    def __init__(self, ahead_s: float | None = None) -> None:
        self._ahead_s = wall_ahead() if ahead_s is None else ahead_s

    def __call__(self) -> float:
        return self._ahead_s + boottime()
