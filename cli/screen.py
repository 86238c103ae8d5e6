"""The terminal as a screen of its own: drawn anew, with keys, and given back whatever happens; and
`carma top`, the whole server kept up to date on it."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from datetime import UTC, datetime, timedelta

from carma_client.logs import open_log
from carmad.errors import CarmaError
from carmad.readable import clean
from cli import client, dashboard, output, overview, render
from cli.host import Host
from cli.overview import sort, top_table
from cli.text import cut, in_style, layout, paint, wrap

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn

    from cli.text import Block, Line

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
    """Not by sys.stdout: it refuses a signal's handler that writes while it is written to."""
    data = text.encode(sys.stdout.encoding, sys.stdout.errors or "strict")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


TAIL_BYTES = 65536
WITHIN_S = 5.0  # for an answer: keys must not wait longer
PAST_EVERY_S, STEP_S = 10.0, 10
LOW = 8  # lines for jobs: with fewer, they have no header
SORTS = ("place in line", "-time", "-vram", "user", "name")  # the first: as the daemon sends them
FOOTER = ("? help", "q quit", "↑↓ select", "w why", "l log", "c cancel", "s sort", "m mine")
HELP = """\
↑ ↓  or  k j    select a job
Enter  or  w    why it waits, or what became of it
l               the end of its output
c               cancel it, after a question
s               sort: by place in line, time, GPU memory, user or name
m               only your own jobs, or everybody's
Esc             back
q               quit""".splitlines()


def run(every_s: float) -> int:
    top = Top(client.get("/v1/status"), every_s)
    with Screen() as screen:
        while top.open:
            screen.draw(top.lines(*output.size()))
            key = screen.key(every_s)
            if key is None:
                top.look()
            else:
                top.press(key)
    return 0


class Top:
    """What is shown. `pane`: what covers the jobs: nothing, "help", "why" or "log"."""

    def __init__(self, answer: Any, every_s: float) -> None:
        self.answer = answer
        self.every_s = every_s
        self.open = True
        self.pane = ""
        self.trouble = ""  # the daemon does not answer, or refuses
        self.asks = ""  # the question that the next key answers
        self._chosen = ""  # the label of the selected job
        self._mine = False
        self._sort = 0
        self._text: list[Block] = []  # of the pane
        self._first = 0  # line of it that is shown, or row of the jobs
        self._host = Host()
        self._past: Any = None  # the timeline
        self._due = 0.0  # when it is asked for again
        self._look_around()

    # -- what it knows

    def look(self) -> None:
        """Ask the daemon again. If it does not answer, what it said last stays."""
        try:
            self.answer = client.get("/v1/status", WITHIN_S)
            self._look_around()
            if self.pane in ("why", "log"):
                self._text = self._details()
            self.trouble = ""
        except CarmaError as error:
            self.trouble = f"{error.message}; asking again every {self.every_s:g} s"

    def _look_around(self) -> None:
        """At the host and, from time to time, at the last half hour, if it can be shown."""
        self._host.look()
        if time.monotonic() < self._due or not dashboard.wants_past(*output.size()):
            return
        self._due = time.monotonic() + PAST_EVERY_S
        since = datetime.now(UTC) - timedelta(seconds=dashboard.PAST_S)
        try:
            asked = {"since": since.isoformat(), "step_s": STEP_S}
            self._past = client.get("/v1/timeline", WITHIN_S, **asked)
        except CarmaError:
            self._past = None  # an older carmad: there are no graphs

    def jobs(self) -> list[Any]:
        live, ended = overview.split_ended(self.answer["jobs"])
        jobs = live + ended
        if self._mine:
            jobs = [job for job in jobs if job["user"] == self.answer["me"]["user"]]
        return sort(jobs, SORTS[self._sort]) if self._sort else jobs

    @property
    def _at(self) -> int:
        """The row of the selected job; of the first, if it is gone."""
        labels = [job["label"] for job in self.jobs()]
        return labels.index(self._chosen) if self._chosen in labels else 0

    def _selection(self) -> Any | None:
        jobs = self.jobs()
        return jobs[self._at] if jobs else None

    def _details(self) -> list[Block]:
        """What the pane says about the selected job. Raises CarmaError."""
        label = _one_of(self._chosen)
        if self.pane == "why":
            return render.why(client.get(f"/v1/jobs/{label}/why", WITHIN_S))
        return _tail(client.get(f"/v1/jobs/{label}", WITHIN_S))

    # -- keys

    def press(self, key: str) -> None:
        if self.asks:
            self.asks = ""
            if key in ("y", "Y"):
                self._cancel()
        elif key == "q":
            self.open = False
        elif key == "back":
            self.pane = ""
        elif key == "?":
            self._show("help")
        elif key in ("up", "down", "page up", "page down"):
            self._move({"up": -1, "down": 1, "page up": -10, "page down": 10}[key])
        elif key == "m":
            self._mine, self.pane = not self._mine, ""
        elif key == "s":
            self._sort, self.pane = (self._sort + 1) % len(SORTS), ""
        elif key in ("w", "enter", "l", "c") and (job := self._selection()):
            self._chosen = job["label"]
            if key == "c":
                self.asks = f"cancel job {job['label']}? [y/N]"
            else:
                self._show("log" if key == "l" else "why")

    def _move(self, by: int) -> None:
        if self.pane:
            self._first = max(0, self._first + by)
        elif jobs := self.jobs():
            self._chosen = jobs[min(len(jobs) - 1, max(0, self._at + by))]["label"]

    def _show(self, pane: str) -> None:
        """A pane; the key of the one that is shown closes it."""
        self.pane = "" if self.pane == pane else pane
        self._first = 0
        self._text = []
        if self.pane == "help":
            self._text = [*HELP]
        elif self.pane:
            try:
                self._text = self._details()
            except CarmaError as error:
                self._text = [in_style(clean(error.message), "red"), clean(error.hint)]

    def _cancel(self) -> None:
        labels, at = [job["label"] for job in self.jobs()], self._at
        try:
            body = {"select": self._chosen, "user": None}
            results = client.post("/v1/cancel", body, WITHIN_S)["results"]
        except CarmaError as error:
            self.trouble = error.message
            return
        self._chosen = (labels[at + 1 :] or labels[at - 1 :] or [""])[0]  # its neighbour
        self.look()
        refused = [one["message"] for one in results if not one["ok"]]
        self.trouble = refused[0] if refused else ""

    # -- the picture

    def lines(self, room: int, height: int) -> list[Line]:
        if self.pane:
            top = layout([overview.headline(self.answer), ""], room)
        else:
            wanted = 2 + len(self.jobs())  # a header, and what is not shown
            sizes = room, height - 1, wanted
            top = dashboard.head(self.answer, self._past, self._host, *sizes, output.is_ascii())
        rows = max(1, height - len(top) - 1)
        below = self._pane(room, rows) if self.pane else self._table(room, rows)
        below += [()] * (rows - len(below))
        return [*top[: height - 2], *below[:rows], self._footer(room)]

    def _pane(self, room: int, rows: int) -> list[Line]:
        text = [line for block in self._text for line in layout([block], room)]
        end = max(0, len(text) - rows)
        if self.pane == "log" and not self._first:
            return text[end:]
        self._first = min(self._first, end)
        return text[self._first : self._first + rows]

    def _table(self, room: int, rows: int) -> list[Line]:
        jobs, at = self.jobs(), self._at
        if not jobs:
            return wrap("no jobs: submit one with `carma submit -- COMMAND`", room)
        header, *each = top_table(jobs, room).row_lines(room)
        if rows <= LOW and len(header) + sum(map(len, each)) > rows:
            header = []
        more = self.answer.get("more", 0)
        self._first = min(self._first, at)
        while sum(map(len, each[self._first : at + 1])) > rows - len(header) - 1:
            self._first += 1  # the selected one is in sight
        lines, shown = header, 0
        for n, its in enumerate(each[self._first :], self._first):
            last = n == len(each) - 1 and not (more or self._first)
            if shown and len(lines) + len(its) > rows - (not last):
                break
            lines = [*lines, *([_reverse(line, room) for line in its] if n == at else its)]
            shown += 1
        hidden = len(jobs) - shown + more
        return [*lines, in_style(f"and {hidden} more", "dim")] if hidden > 0 else lines

    def _footer(self, room: int) -> Line:
        if self.asks:
            return in_style(self.asks, "bold yellow")
        if self.trouble:
            return in_style(clean(self.trouble), "bold red")
        state = f"sorted by {SORTS[self._sort].lstrip('-')}  " if self._sort else ""
        state += "yours only  " * self._mine
        keys = [*FOOTER]
        while keys and len(state) + len("  ".join(keys)) > room:
            keys.pop()  # the help names all
        return (state, "cyan"), ("  ".join(keys), "dim")


def _reverse(line: Line, room: int) -> Line:
    return in_style("".join(text for text, _ in line).ljust(room), "reverse")


def _one_of(label: str) -> str:
    """The first task of a row that stands for several: 7_2 of 7_[2-99%4]."""
    array, bracket, tasks = label.partition("_[")
    first = tasks.replace("-", ",").replace("]", ",").replace("%", ",").partition(",")[0]
    return f"{array}_{first}" if bracket else label


def _tail(job: Any) -> list[Block]:
    path = job.get("stdout")
    if path is None:
        return ["its output is its owner's"]
    try:
        text = _end_of(path)
    except OSError as error:
        started = job["started_at"] is not None
        why = error.strerror if started else "the job has not started"
        return [f"no output in {clean(path)}: {why}"]
    lines = text.decode(errors="replace").splitlines()
    return [clean(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


def _end_of(path: str) -> bytes:
    """The last lines of a file. Raises OSError, also if it is something that may never end."""
    with open_log(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES)
