"""What a job has printed, from its log, which is read with the caller's rights; for a page, its end
as plain text.

An attempt that finds text in its log writes a header line (`carmad.attempt.supervisor`). What
follows, up to the next header, is that job's output.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from carma_client import Refused
from carmad.readable import clean
from carmad.states import ENDED, NEW

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, BinaryIO

    from carma_client.client import Client

BLOCK = 65536
LOOK_S = 0.2  # between checks for new output
ASK_S = 2.0  # between checks whether the job has ended
HEADER = re.compile(rb"=== carma job (\d+), attempt (\d+), \S+ ===\n")
MOST_HEADER = 100  # bytes


def lines(client: Client, label: str, follow: bool, stderr: bool) -> Generator[str, None, None]:
    """As `Client.logs`."""

    def ask() -> Any:
        return client.patiently(lambda: client.job(label))

    job: Any = client.job(label)
    if job.get("interactive"):
        raise Refused(elsewhere(job))
    path: str = job["stderr" if stderr else "stdout"]
    while follow and not Path(path).exists() and job["state"] not in ENDED:
        client.pause(ASK_S)
        job = ask()
    with open_log(path) as file:
        log = Log(file)
        shown = Lines()
        own = log.parts(job)
        end = file.tell()
        for text in blocks(file, own):
            yield from map(_as_text, shown.feed(text))
        file.seek(end)
        if follow:
            for text in news(log.news, lambda: ask()["state"] in ENDED, client.pause):
                yield from map(_as_text, shown.feed(text))
        if rest := shown.rest():
            yield _as_text(rest)


def news(
    read: Callable[[], Iterator[bytes]],
    has_ended: Callable[[], bool],
    pause: Callable[[float], None],
    ask_s: float = ASK_S,
) -> Iterator[bytes]:
    """What a log gets, until its job has ended. `ask_s`: between two questions whether it has."""
    ended, asked_at = False, -ask_s
    while not ended:
        if time.monotonic() - asked_at >= ask_s:
            ended, asked_at = has_ended(), time.monotonic()
        yield from read()
        if not ended:
            pause(LOOK_S)


def _as_text(line: bytes) -> str:
    return line.rstrip(b"\n").decode(errors="replace")


def open_log(path: str) -> BinaryIO:
    """The log, to be read. Raises OSError, also if it is something that may never end: opening a
    pipe waits for its writer, and a device may do anything."""
    _require_file(Path(path).stat())
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    try:
        _require_file(os.fstat(file.fileno()))  # it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def _require_file(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def elsewhere(job: Any) -> str:
    """Why there is no log of a job at a terminal."""
    if job.get("slurm_job"):
        return f"the output of job {job['label']} is that of Slurm job {job['slurm_job']}"
    return f"job {job['label']} runs at a terminal, and its output is there"


class Log:
    """A log file, read from where it is to its end, and further as it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.begun: set[int] = set()  # jobs whose first attempt has a header
        self._owner: int | None = None  # the job whose part is being read; None: before any header
        self._job = 0
        self._is_first = False

    def parts(self, job: Any) -> list[tuple[int, int]]:
        """Offset and size of what the job has written so far."""
        parts = [(owner, at, len(text)) for owner, at, text in self._read()]
        self._job = job["id"]
        # Text before any header was written by the first job that used the file.
        self._is_first = self._job not in self.begun and (job["attempt"] > 0 or not parts)
        return [(at, size) for owner, at, size in parts if self._is_own(owner)]

    def news(self) -> Iterator[bytes]:
        """What the job has written since."""
        return (text for owner, _, text in self._read() if self._is_own(owner))

    def _is_own(self, owner: int | None) -> bool:
        return self._is_first if owner is None else owner == self._job

    def _read(self) -> Iterator[tuple[int | None, int, bytes]]:
        """What was added since the last call: the job, the offset, the text."""
        if os.fstat(self.file.fileno()).st_size < self.file.tell():  # it was truncated
            self.file.seek(0)
            self._owner = None
        while block := self.file.read(BLOCK):
            at = self.file.tell() - len(block)
            block += self.file.readline(MOST_HEADER)  # so that no header is cut in two
            begin = 0
            for header in HEADER.finditer(block):
                yield self._owner, at + begin, block[begin : header.start()]
                self._owner, begin = int(header[1]), header.start()
                if header[2] == b"1":
                    self.begun.add(self._owner)
            yield self._owner, at + begin, block[begin:]


def blocks(file: BinaryIO, parts: list[tuple[int, int]]) -> Iterator[bytes]:
    """The text of these parts, in pieces that fit into memory."""
    for at, size in parts:
        file.seek(at)
        while size > 0 and (block := file.read(min(size, BLOCK))):
            size -= len(block)
            yield block


def last_lines(file: BinaryIO, parts: list[tuple[int, int]], lines: int) -> Iterator[bytes]:
    """The last lines of these parts, as a terminal shows them."""
    ended = 0  # lines, in what follows
    begin: list[tuple[int, int]] = []
    for at, size in reversed(parts) if lines else ():
        until = at + size
        while until > at:
            start = max(at, until - BLOCK)
            file.seek(start)
            block = file.read(until - start)
            if not begin and block:
                ended -= block.endswith(b"\n")  # the last line's own end begins no other
            if (count := block.count(b"\n")) + ended >= lines:
                cut = len(block)
                for _ in range(lines - ended):
                    cut = block.rfind(b"\n", 0, cut)
                begin.append((start + cut + 1, until - start - cut - 1))
                return _ended_lines(blocks(file, begin[::-1]))
            ended += count
            begin.append((start, until - start))
            until = start
    return _ended_lines(blocks(file, begin[::-1]))


def _ended_lines(text: Iterator[bytes]) -> Iterator[bytes]:
    lines = Lines()
    for block in text:
        yield from lines.feed(block)
    if rest := lines.rest():
        yield rest


MOST_HELD = 1 << 24  # bytes of a line: a longer one comes in pieces


class Lines:
    """Makes lines, with their ends, of a text that comes in pieces; each as a terminal shows it in
    the end: of a progress bar, whose states begin with \\r, the last. Holds no more than that."""

    def __init__(self) -> None:
        self._state: list[bytes] = []  # the pieces of the one that has begun
        self._size = 0
        self._shown = b""  # the last one before it that is not blank

    def feed(self, text: bytes) -> Iterator[bytes]:
        *whole, rest = text.split(b"\n")
        for line in whole:
            self._add(line)
            yield self.rest() + b"\n"
        self._add(rest)
        if self._size > MOST_HELD:
            yield self.rest()

    def rest(self) -> bytes:
        """The line that has begun, which is left out from then on."""
        found = b"".join(self._state)
        found = self._shown if _is_blank(found) else found
        self._state, self._size, self._shown = [], 0, b""
        return found

    def _add(self, text: bytes) -> None:
        *over, begun = text.split(b"\r")
        if over:
            over[0] = b"".join(self._state) + over[0]
            self._shown = next(
                (state for state in reversed(over) if not _is_blank(state)), self._shown
            )
            self._state, self._size = [], 0
        self._state.append(begun)
        self._size += len(begun)


def _is_blank(state: bytes) -> bool:
    return not (re.sub(_ESCAPE.encode(), b"", state) if b"\x1b" in state else state).strip()


READ_BYTES = 1 << 18
LONGEST = 2_000  # characters of a line
# What terminals take for colours, titles and movements of the cursor.
_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"


class Tail(NamedTuple):
    """`why`: instead of lines. `more`: the file has earlier ones."""

    lines: tuple[str, ...] = ()
    why: str = ""
    more: bool = False


def tail(path: str, job: Any, lines: int) -> Tail:
    """The last lines that the job wrote to the file, read with the caller's rights."""
    try:
        with open_log(path) as file:
            return _tail(file, job, lines)
    except (OSError, ValueError) as error:
        return Tail(why=unreadable(path, job, error))


def has_log(job: Any) -> bool:
    """Whether the job has begun to run, which creates its log."""
    return job["started_at"] is not None and job["state"] not in NEW | {"starting"}


def unreadable(path: str, job: Any, error: Exception) -> str:
    """Why there is nothing to see."""
    if isinstance(error, FileNotFoundError):
        gone = f"{clean(path)} was deleted or moved"
        return gone if has_log(job) else "there is no output yet"
    return f"cannot read {clean(path)}: {getattr(error, 'strerror', None) or error}"


def output(path: str, job: Any) -> Iterator[bytes]:
    """All that the job has printed, in pieces. Raises OSError before the first."""
    with open_log(path) as file:
        parts = Log(file).parts(job)
        yield b""
        yield from blocks(file, parts)


def search(path: str, job: Any, text: str, most: int) -> Tail:
    """The last lines of the job's output that contain the text, in any case, each with its number:
    `most` at most. Read with the caller's rights."""
    wanted, count = text.casefold(), 0
    found: deque[str] = deque(maxlen=most)
    try:
        number = 1
        for line in _ended_lines(output(path, job)):
            whole = _plain(line)
            at = whole.casefold().find(wanted)
            if at >= 0:
                found.append(f"{number:>6}  {_cut(whole, at)}")
                count += 1
            number += line.endswith(b"\n")
    except (OSError, ValueError) as error:
        return Tail(why=unreadable(path, job, error))
    if not found:
        return Tail(why="no line contains that")
    return Tail(tuple(found), more=count > most)


def _tail(file: BinaryIO, job: Any, lines: int) -> Tail:
    size = file.seek(0, os.SEEK_END)
    begin = file.seek(max(0, size - READ_BYTES))
    if begin:  # not from the middle of a line
        file.seek(begin + file.read(READ_BYTES).find(b"\n") + 1)
    parts = Log(file).parts(job)
    found = [_cut(_plain(line)) for line in last_lines(file, parts, lines + 1)]
    if not found:
        why = "the end of the file was written by other jobs" if size else "it is empty so far"
        return Tail(why=why, more=bool(begin))
    return Tail(tuple(found[-lines:]), more=bool(begin) or len(found) > lines)


def _cut(line: str, around: int = 0) -> str:
    """What fits, with what is there."""
    begin = max(0, min(around - LONGEST // 2, len(line) - LONGEST))
    end = begin + LONGEST
    return f"{'…' * (begin > 0)}{line[begin:end]}{'…' * (end < len(line))}"


def _plain(line: bytes) -> str:
    """Without what would control a terminal."""
    return clean(re.sub(_ESCAPE, "", _as_text(line)).expandtabs(8))
