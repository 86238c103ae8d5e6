"""The tracer's single answer, a report or a refusal, on file descriptor 3, followed by exit; and
the clock by which it is due.

Answering ends the process at once: none of the script's `except` or `finally` blocks, threads or
exit handlers can interfere. The processes of an attempt answer with a `Message` each, which
`attempts` collects.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import sys
import sysconfig
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Iterator, NoReturn

from .command import Options
from .report import ANSWER_FD, Message, No, Report, Stop

if TYPE_CHECKING:
    from .script import Trace

exit_now = os._exit  # `following` replaces it
HIGH = 500  # scripts close low descriptors
LOOK_S = 0.5  # between two looks whether there is a reason to refuse
BUSY = 0.05  # of this time on a processor: it is at work
SPARE_S = 0.7  # before the daemon's timeout
MOST_LETTERS, MOST_LINES = 900, 12  # of a message
OFFLINE = frozenset(  # exceptions of urllib, requests, httpx and Hugging Face's libraries
    (
        *("URLError", "gaierror", "ConnectionError", "ConnectError", "ConnectTimeout"),
        *("LocalEntryNotFoundError", "OfflineModeIsEnabled"),
    )
)
HUBS = ("huggingface.co", "HF_HUB_OFFLINE", "a traced script opens no sockets")
_INSTALLED = re.compile(r"(site|dist)-packages/")
_OTHERS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")


class Clock:
    def __init__(self, started: float) -> None:
        """`started`: by the monotonic clock. What the process has done so far counts as import."""
        self._started = started
        self._imports_s = time.process_time()
        self._importing: float | None = None  # processor time when the import began
        self._main = threading.get_ident()

    @property
    def seconds(self) -> float:
        """By the clock."""
        return time.monotonic() - self._started

    @property
    def own_s(self) -> float:
        """Of a processor, by all threads and earlier attempts, except for imports in the main
        thread."""
        importing = self._importing
        return (time.process_time() if importing is None else importing) - self._imports_s

    def set(self, own_s: float) -> None:
        """Go on from there: an attempt, or a process of it, begins or has ended."""
        self._imports_s, self._importing = time.process_time() - own_s, None
        self._main = threading.get_ident()

    def install(self) -> None:
        """Notice imports from now on."""
        importlib: Any = sys.modules["_frozen_importlib"]
        find = importlib._find_and_load  # the interpreter calls it by this name

        def find_and_load(*args: Any) -> Any:
            if self._importing is not None or threading.get_ident() != self._main:
                return find(*args)
            self._importing = time.process_time()
            try:
                return find(*args)
            finally:
                self._imports_s += time.process_time() - self._importing
                self._importing = None

        importlib._find_and_load = find_and_load


class Answer:
    def __init__(self, clock: Clock, options: Options) -> None:
        self.clock = clock
        self.trace: Trace  # once it is made
        self._options = options
        self.is_first = True  # no process of an attempt has started this one
        self._fd = _out_of_the_way(ANSWER_FD)
        self._control: int | None = None  # of an attempt: it is closed when nobody waits any more
        self._signals: int | None = None  # a pipe with the numbers of signals that came
        self._turn = os.memfd_create("turn")  # locked by the process that writes
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ready: Report | None = None  # what to answer when the time is up

    @property
    def is_half_over(self) -> bool:
        """Half of the time has passed."""
        return self._left_s < min(self._options.within_s, self._options.longest_s - SPARE_S) / 2

    @property
    def _left_s(self) -> float:
        """A moment before which the time is not up."""
        left_s = self._options.longest_s - SPARE_S - self.clock.seconds
        return min(self._options.within_s - self.clock.own_s, left_s)

    def speak_for_attempt(self, fd: int, control: int, own_s: float) -> None:
        """Call this in the first process of an attempt: its answers go to the one that made it."""
        os.close(self._fd)
        self._fd, self._control = _out_of_the_way(fd), _out_of_the_way(control)
        self.begin_process(own_s)
        self.is_first = True

    def begin_process(self, own_s: float) -> None:
        """Call this in a process of an attempt, once it was forked. `own_s`: the clock's before."""
        self.is_first = False
        self.clock.set(own_s)
        self._begin()
        self.before_the_deadline()

    def conclude_when_told(self) -> None:
        """Conclude at SIGTERM, as Pool.terminate sends it: in the thread that watches the time, as
        the main one may wait where no handler runs."""
        for fd in (self._signals, signal.set_wakeup_fd(-1)):
            if fd not in (None, -1):
                os.close(fd)
        reads, writes = map(_out_of_the_way, os.pipe())
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _leave_to_thread)
        self._signals = reads

    def give(self, answer: Report | No, stop: Stop | None = None, status: int = 0) -> NoReturn:
        """`stop`: of an attempt that ended before two optimizer steps. `status`: to leave with."""
        if os.getpid() != self._pid:
            self.leave()
        self._lock.acquire()  # never released: only the first answer counts
        if self._control is None:
            _write(self._fd, answer.dumps())
        else:
            self._tell(answer, stop)
        self.leave(status)

    def leave(self, status: int = 0) -> NoReturn:
        """End the process; without an answer, unless it was given."""
        exit_now(status)

    def conclude(self) -> None:
        """Answer with what is known: the process is to end."""
        if self._lock.locked():  # it does already
            return
        if part := self._ready or self.trace.find_part():
            self.give(part)
        self.leave()

    def _tell(self, answer: Report | No | None = None, stop: Stop | None = None) -> None:
        gpu, born, trains = self.trace.find_state()
        times = born, time.monotonic(), self.clock.own_s
        report = answer if isinstance(answer, Report) else None
        no = answer if isinstance(answer, No) else None
        message = Message(self.is_first, *times, gpu, trains, report, no, stop)
        fcntl.lockf(self._turn, fcntl.LOCK_EX)
        _write(self._fd, message.dumps())
        fcntl.lockf(self._turn, fcntl.LOCK_UN)

    def keep(self, report: Report) -> None:
        """Give this if there is no better answer in time."""
        self._ready = report

    def refuse(self, why: str, *, late: bool = False) -> NoReturn:
        """`late`: with more time there may be a report."""
        self.give(No(why, late))

    def stop(self, stop: Stop, status: int = 1) -> NoReturn:
        self.give(No(stop.why), stop, status)

    def crash(self, how: str) -> NoReturn:
        """`how`: completes "your script stops …"."""
        if skipped := self._options.skipped:
            self.refuse(f"it stopped {how}; perhaps because {skipped}")
        self.give(No(f"the script stops {how}", crash=how))

    def crash_late(self, report: Report, how: str) -> NoReturn:
        """`report`: on a script that stops after two steps."""
        assert report.rest is not None
        rest = replace(report.rest, crash=how)
        if skipped := self._options.skipped:
            rest = replace(report.rest, end=f"{report.rest.end}; perhaps because {skipped}")
        self.give(replace(report, rest=rest))

    def before_the_deadline(self) -> None:
        """Report what is kept or how far the script came, if there is no other answer in time."""
        main = threading.get_ident()

        def wait() -> None:
            is_over = False  # nobody waits
            while (left_s := self._left_s) > 0 and not is_over:
                began_s = time.process_time()
                is_over = self._sleep(min(left_s, LOOK_S))
                if why := self.trace.find_reason():
                    self.refuse(why)
                if self._control is not None and time.process_time() - began_s > BUSY * LOOK_S:
                    with self._lock:
                        self._tell()
            if is_over:
                self.conclude()
            if self._ready:
                self.give(self._ready)
            own = own_place(sys._current_frames().get(main))
            place = f"it was at {own}" if own else "it was loading libraries"
            took = ("no", "one")[min(self.trace.steps, 1)]
            own_s, all_s = self.clock.own_s, self.clock.seconds
            spent = f"{all_s:.0f} s ({own_s:.0f} s of processor time)"
            self.refuse(f"it took {took} optimizer step in {spent}; {place}", late=True)

        threading.Thread(target=wait, daemon=True).start()

    def _sleep(self, seconds: float) -> bool:
        """Whether nobody waits for this attempt any more, or this process is told to end."""
        poller = select.poll()
        for fd in (self._control, self._signals):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        for fd, event in poller.poll(1000 * seconds):
            if fd == self._control and event & select.POLLHUP:
                return True
            if fd == self._signals and signal.SIGTERM in os.read(fd, 1 << 10):
                return signal.getsignal(signal.SIGTERM) is _leave_to_thread
        return False


def _leave_to_thread(*_: Any) -> None:
    """A handler of signals."""


def _out_of_the_way(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(fd)
    return high


def _write(fd: int, text: bytes) -> None:
    while text:
        text = text[os.write(fd, text) :]


def own_place(frame: FrameType | None) -> str:
    """`train.py:12`: the innermost line of the user's own code that runs; "" if there is none."""
    while frame is not None and not is_own(frame):
        frame = frame.f_back
    return f"{short_path(frame)}:{frame.f_lineno}" if frame is not None else ""


def is_own(frame: FrameType) -> bool:
    return is_own_file(frame.f_code.co_filename)


def is_own_file(path: str) -> bool:
    return not path.startswith(_OTHERS) and not _INSTALLED.search(path)


def what_went_wrong(error: BaseException) -> str:
    """`train.py:12: ValueError: …`, in one line."""
    place = place_of(error)
    return f"{place}: " * bool(place) + f"{type(error).__name__}: {one_line(error)}"


def place_of(error: BaseException) -> str:
    """`train.py:12`: the innermost line of the user's own code; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [one for one in traceback.walk_tb(error.__traceback__) if is_own(one[0])]
    return f"{short_path(lines[-1][0])}:{lines[-1][1]}" if lines else ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and what was being handled when it was raised."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def offline(error: BaseException) -> str:
    """What to do about it, if the script failed because it has no network; else ""."""
    for cause in chain(error):
        mro = {kind.__name__ for kind in type(cause).__mro__}
        if mro & OFFLINE or any(word in text_of(cause) for word in HUBS):
            return (
                "; a trace has no network, and uses what is in the cache: download models and data "
                "before, or run the script once"
            )
    return ""


def text_of(error: Any) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  the script's own code
        return ""


def one_line(error: Any) -> str:
    """The whole message, unless it is a long list."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()][:MOST_LINES]
    ended = (line if line[-1] in ".,:;!?" else f"{line};" for line in lines[:-1])
    return " ".join((*ended, *lines[-1:]))[:MOST_LETTERS] or "no message"


def short_path(frame: FrameType) -> str:
    """The path of its file, relative to the working directory if it is below that."""
    path = frame.f_code.co_filename
    below = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
    return path[len(below) :] if path.startswith(below) else path
