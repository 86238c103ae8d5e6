"""The daemon's clock: wall-clock time that never jumps while an attempt runs. And whether the
system's clock was set meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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


_log = logging.getLogger(__name__)

FAR_S = 60.0  # a difference that people notice; below that, only `carma doctor` tells
SURE_S = 60.0  # it may be set back


class Wall:
    """`look` is to be called every now and then. `clock` is the daemon's; `restart` has carmad
    start anew, which takes over the new time and shifts what was measured; None: nobody would start
    it."""

    def __init__(self, clock: Callable[[], float], restart: Callable[[], None] | None) -> None:
        self._clock = clock
        self._restart = restart
        self._off_s = self._ahead_s()  # a full disk may have kept this daemon from following
        self._since: float | None = None  # monotonic
        self._restarted = False

    def look(self) -> None:
        off_s = self._ahead_s() - self._off_s
        if abs(off_s) < FAR_S:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
            follows = "carmad restarts to follow it" if self._restart else "restart carmad"
            _log.warning(
                "the system's clock was set by %.0f s; %s: running jobs continue", off_s, follows
            )
        elif self._restart and not self._restarted and time.monotonic() - self._since >= SURE_S:
            self._restarted = True
            self._restart()

    def _ahead_s(self) -> float:
        return time.time() - self._clock()
