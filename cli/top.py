"""`carma top`: the whole server, kept up to date on a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from contextlib import contextmanager

from cli import client, dashboard, output
from cli.table import cut, layout, painted

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # a screen of its own, no cursor
HOME, TO_END, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def run(every_s: float) -> int:
    with _screen():
        while True:
            _draw()
            ready, _, _ = select.select([sys.stdin], [], [], every_s)
            if ready and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
                return 0


def _draw() -> None:
    room, height = output.size()
    answer = client.get("/v1/status")
    picture = dashboard.status(answer, room, height, plain=output.is_ascii())
    lines = [painted(cut(line, room), output.colored()) for line in layout(picture, room)]
    sys.stdout.write(HOME + f"{TO_END}\r\n".join(lines[:height]) + TO_END + BELOW)
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """Keys are read as they are pressed, without echo. What was there before returns at the end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # keeps what was typed ahead
    sys.stdout.write(OPEN)
    try:
        yield
    finally:
        sys.stdout.write(CLOSE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
