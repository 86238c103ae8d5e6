"""The terminal as a screen of its own: drawn anew, with keys, and given back whatever happens."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty

from cli import output
from cli.table import cut, paint

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

    from cli.table import Line

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # a page of its own, no cursor
HOME, LINE_END, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "back",
    "": "q",  # the terminal is gone
}


class Screen:
    """A context. Ctrl-C, Ctrl-Z, SIGTERM and a closed terminal leave nothing changed."""

    def __init__(self) -> None:
        self._typed: list[str] = []
        self._color = output.uses_color()

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(sys.stdin)
        self._woken, wakes = os.pipe()  # a signal, such as of a new size, ends the wait for a key
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, _leave)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._give_back()

    def _take(self) -> None:
        signal.signal(signal.SIGTSTP, self._pause)
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # keeps what was typed ahead
        _write(OPEN)

    def _give_back(self) -> None:
        try:
            _write(CLOSE)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal is gone

    def _pause(self, _signum: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: as the shell left it, until the shell continues us."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._take()

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw as many of the lines as fit."""
        room, height = output.size()
        shown = [paint(cut(line, room), self._color) for line in lines[:height]]
        _write(HOME + f"{LINE_END}\n".join(shown) + LINE_END + BELOW)

    def key(self, within_s: float) -> str | None:
        """The next key: its character, or a name of KEYS. None: time to draw again."""
        if not self._typed:
            ready, _, _ = select.select([sys.stdin, self._woken], [], [], within_s)
            if self._woken in ready:
                os.read(self._woken, 4096)
            if sys.stdin not in ready:
                return None
            self._typed = _split(_read())
        return self._typed.pop(0)


def _split(text: str) -> list[str]:
    """What was typed, key by key."""
    if text in KEYS:
        return [KEYS[text]]
    keys = []
    while text:
        known = max((k for k in KEYS if k and text.startswith(k)), key=len, default=text[0])
        keys.append(KEYS.get(known, known))
        text = text[len(known) :]
    return keys


def _read() -> str:
    try:
        return os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
    except OSError:
        return ""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
