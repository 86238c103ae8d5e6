"""Heartbeats: each long-lived thread of the daemon says what it works on, and since when.

One that is at the same work for longer than it may be is late. Who asks learns where it is, as far
as Python knows: that is the call that hangs. A thread cannot be killed, so nothing else is done
about it here; what it serves is degraded by those who need it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)

LOOK_S = 1.0
CALM_S = 60.0  # a thread that is late again within this time has not recovered


class _Beat:
    """Written by its own thread, without a lock: a plugin's answer takes microseconds."""

    __slots__ = ("fatal", "ident", "late_s", "name", "work")

    def __init__(self, name: str, late_s: float, fatal: bool) -> None:
        self.name = name
        self.late_s = late_s
        self.fatal = fatal
        self.ident = threading.get_ident()
        # What it does, since when (monotonic), and for how long it may. None: it waits for work.
        self.work: tuple[str, float, float] | None = None


_BEATS: dict[int, _Beat] = {}  # by thread


@dataclass(frozen=True, slots=True)
class Late:
    thread: str
    what: str
    for_s: float
    fatal: bool  # the daemon is of no use without it, and has to be restarted
    ident: int

    @property
    def call(self) -> str:
        """The innermost function that it is in."""
        frame = sys._current_frames().get(self.ident)
        return frame.f_code.co_name if frame else "none: it has ended"

    def __str__(self) -> str:
        return f"the thread {self.thread} has been at {self.what} for {self.for_s:.0f} s"


@contextlib.contextmanager
def beating(name: str, late_s: float, *, fatal: bool = False) -> Iterator[None]:
    """The current thread has a heartbeat meanwhile. It may be at the same work for `late_s`. If it
    dies of an error, it stays late."""
    beat = _BEATS[threading.get_ident()] = _Beat(name, late_s, fatal)
    try:
        yield
    except BaseException as error:
        beat.work = f"nothing, as it died of {error!r:.200}", time.monotonic(), 0.0
        _BEATS[id(beat)] = _BEATS.pop(beat.ident)  # a new thread may get its number
        beat.ident = 0
        raise
    else:
        del _BEATS[beat.ident]


def thread(name: str, late_s: float, run: Callable[[], object]) -> threading.Thread:
    """A thread that runs this with a heartbeat; it has yet to be started."""

    def beat() -> None:
        with beating(name, late_s):
            run()

    return threading.Thread(target=beat, name=name, daemon=True)


def at(what: str, late_s: float | None = None) -> None:
    """The current thread, if it has a heartbeat, begins to work on something else."""
    if beat := _BEATS.get(threading.get_ident()):
        beat.work = what, time.monotonic(), beat.late_s if late_s is None else late_s


def idle() -> None:
    """The current thread waits for work: that may take any time."""
    if beat := _BEATS.get(threading.get_ident()):
        beat.work = None


def late() -> list[Late]:
    """Those that are late now."""
    now, found = time.monotonic(), []
    for beat in list(_BEATS.values()):
        if (work := beat.work) and now - work[1] > work[2]:
            found.append(Late(beat.name, work[0], now - work[1], beat.fatal, beat.ident))
    return found


def ages() -> dict[str, float]:
    """For how long each thread has been at what it does, in seconds; 0: it waits for work. Of
    several with the same name, the longest."""
    now, found = time.monotonic(), dict[str, float]()
    for beat in list(_BEATS.values()):
        age = now - beat.work[1] if beat.work else 0.0
        found[beat.name] = max(found.get(beat.name, 0.0), age)
    return found


def call_of(name: str) -> str:
    """The innermost function that the thread of this name is in."""
    idents = [beat.ident for beat in list(_BEATS.values()) if beat.name == name and beat.work]
    frames = sys._current_frames()
    return next((frames[one].f_code.co_name for one in idents if one in frames), "")


def stack(ident: int) -> str:
    """Where a thread is, for the log."""
    frame = sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame else "it has ended"


class Watcher:
    """A thread that names those that are late in the log, once per incident, and calls `feed` about
    once a second, unless one that is fatal is late. `tell` hears of each incident at once."""

    def __init__(
        self, feed: Callable[[], None], tell: Callable[[Late], None] = lambda late: None
    ) -> None:
        self._feed = feed
        self._tell = tell
        self._incidents: dict[tuple[str, int], tuple[float, float]] = {}  # since, last seen
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def look(self) -> None:
        now, found = time.monotonic(), late()
        for each in found:
            key = each.thread, each.ident
            began, _ = self._incidents.get(key, (now - each.for_s, now))
            if key not in self._incidents:
                log.error("%s. It is at\n%s", each, stack(each.ident))
                self._tell(each)
            self._incidents[key] = began, now
        for key, (began, seen) in list(self._incidents.items()):
            if now - seen >= CALM_S:
                log.warning("the thread %s goes on; it was late for %.0f s", key[0], seen - began)
                del self._incidents[key]
        if not any(each.fatal for each in found):
            self._feed()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                log.exception("the heartbeats were not looked at")
