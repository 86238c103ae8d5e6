"""What is shown on a terminal, as text; and a real one for commands that need it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, RenderableType

from cli.text import draw
from tests.waiting import until

ROOT = Path(__file__).parents[1]


def plain(picture: Iterable[RenderableType], width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(draw(picture))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def heed_signals() -> None:
    """As a login shell does: whoever runs the tests in the background may have ignored some."""
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)


class Terminal:
    """A command on a terminal of a given size, its controlling one. A context, which kills it."""

    def __init__(self, words: Sequence[str], columns: int = 80, lines: int = 24) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self._theirs)
        self.written = ""
        self._decoder = getincrementaldecoder("utf-8")()  # a read may end within a character
        unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k not in unset} | {"TERM": "xterm"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=lambda: (heed_signals(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def text(self) -> str:
        """What was written so far, without escape sequences."""
        while select.select([self._ours], [], [], 0)[0]:
            self.written += self._decoder.decode(os.read(self._ours, 65536))
        return re.sub(r"\x1b\[[0-9;?<>=]*[A-Za-z]", "", self.written)

    def shows(self, text: str) -> None:
        until(lambda: text in self.text, f"{text!r}")

    def ends(self) -> int:
        """Its exit code. The terminal is as it was."""
        code = until(lambda: self.process.poll() is not None) and self.process.returncode
        assert self.text is not None
        assert "\x1b[?1049l" in self.written.rpartition("\x1b[?1049h")[2]
        assert termios.tcgetattr(self._theirs) == self.before
        return int(code)
