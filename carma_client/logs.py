"""What a job has printed, from its log, which is read with the caller's rights; for a page, its end
as plain text.

An attempt that finds text in its log writes a header line (`carmad.attempt.supervisor`). What
follows, up to the next header, is that job's output. Imports stay light.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import deque

from carma_client import Refused
from carma_client.requests import job_path
from carma_client.steps import Found, Sleep
from carma_client.transport import ENDED, patiently
from carmad.readable import clean

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from carma_client.steps import Steps
    from carma_client.transport import Daemon

BLOCK = 65536
LOOK_S = 0.2  # between checks for new output
ASK_S = 2.0  # between checks whether the job has ended
HEADER = re.compile(rb"=== carma job (\d+), attempt (\d+), \S+ ===\n")
MOST_HEADER = 100  # bytes


def lines(daemon: Daemon, label: str, follow: bool, stderr: bool) -> Steps[None]:
    """Finds the lines that all attempts of a job have printed; `follow`: until it ends. Raises
    OSError if the file cannot be read."""

    def ask() -> Steps[Any]:
        return daemon.ask(job_path(label))

    job = yield from ask()
    if job.get("interactive"):
        raise Refused(elsewhere(job))
    path: str = job["stderr" if stderr else "stdout"]
    while follow and not os.path.exists(path) and job["state"] not in ENDED:  # noqa: PTH110
        yield Sleep(ASK_S)
        job = yield from patiently(ask)
    with open_log(path) as file:
        log = Log(file)
        begun: list[bytes] = []
        own = log.parts(job)
        end = file.tell()
        for at, size in own:
            file.seek(at)
            yield from _whole(begun, file.read(size))
        file.seek(end)
        asked_at = 0.0
        while follow:
            now = time.monotonic()
            if now - asked_at >= ASK_S:
                job, asked_at = (yield from patiently(ask)), now
            for text in log.news():
                yield from _whole(begun, text)
            if job["state"] in ENDED:
                break
            yield Sleep(LOOK_S)
        if rest := b"".join(begun):
            yield Found(rest.decode(errors="replace"))


def _whole(begun: list[bytes], text: bytes) -> Steps[None]:
    """Finds its whole lines. `begun`: the pieces of the line that has no end yet."""
    *whole, rest = text.split(b"\n")
    for line in whole:
        begun.append(line)
        yield Found(b"".join(begun).decode(errors="replace"))
        begun.clear()
    begun.append(rest)


def open_log(path: str) -> BinaryIO:
    """The log, to be read. Raises OSError, also if it is something that may never end: opening a
    pipe waits for its writer, and a device may do anything."""
    _require_file(os.stat(path))  # noqa: PTH116
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
    """A log file, read from its beginning to its end, and further as it grows."""

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


def texts(file: BinaryIO, parts: list[tuple[int, int]]) -> Iterator[bytes]:
    for at, size in parts:
        file.seek(at)
        yield file.read(size)


def last_lines(file: BinaryIO, parts: list[tuple[int, int]], lines: int) -> bytes:
    """The last lines of these parts, reading from the end: logs can be large."""
    tail = b""
    for text in texts(file, parts[::-1]):
        tail = text + tail
        if tail.count(b"\n") > lines:
            break
    return b"".join(tail.splitlines(keepends=True)[-lines:]) if lines else b""


READ_BYTES = 1 << 18
LONGEST = 2_000  # characters of a line
# What terminals take for colours, titles and movements of the cursor.
_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"


class Tail:
    """`why`: instead of lines. `more`: the file has earlier ones."""

    def __init__(self, lines: tuple[str, ...] = (), why: str = "", more: bool = False) -> None:
        self.lines = lines
        self.why = why
        self.more = more


def tail(path: str, job: int, lines: int) -> Tail:
    """The last lines that `job` wrote to the file, read with the caller's rights."""
    try:
        with open_log(path) as file:
            return _of(file, job, lines)
    except (OSError, ValueError) as error:
        return Tail(why=unreadable(path, error))


def unreadable(path: str, error: Exception) -> str:
    """Why there is nothing to see."""
    if isinstance(error, FileNotFoundError):
        return "there is no output yet"
    return f"cannot read {clean(path)}: {getattr(error, 'strerror', None) or error}"


def output(path: str, job: Any) -> Iterator[bytes]:
    """All that the job has printed, in pieces. Raises OSError before the first."""
    with open_log(path) as file:
        parts = Log(file).parts(job)
        yield b""
        for at, size in parts:
            file.seek(at)
            while size > 0 and (block := file.read(min(size, BLOCK))):
                size -= len(block)
                yield block


def search(path: str, job: Any, text: str, most: int) -> Tail:
    """The last lines of the job's output that contain the text, in any case, each with its number:
    `most` at most. Read with the caller's rights."""
    wanted, count = text.casefold(), 0
    found: deque[str] = deque(maxlen=most)
    try:
        for number, line in enumerate(_lines(output(path, job)), 1):
            shown = plain(line.decode(errors="replace"))
            if wanted in shown.casefold():
                found.append(f"{number:>6}  {shown}")
                count += 1
    except (OSError, ValueError) as error:
        return Tail(why=unreadable(path, error))
    if not found:
        return Tail(why="no line contains that")
    return Tail(tuple(found), more=count > most)


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _of(file: BinaryIO, job: int, lines: int) -> Tail:
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - READ_BYTES)
    file.seek(begin)
    data = file.read(READ_BYTES)
    if begin:  # not from the middle of a line
        data = data[data.find(b"\n") + 1 :]
    own = _own(data, job)
    found = [plain(line) for line in own.decode(errors="replace").rstrip("\n").split("\n")]
    if not own:
        why = "the end of the file was written by other jobs" if size else "it is empty so far"
        return Tail(why=why, more=bool(begin))
    return Tail(tuple(found[-lines:]), more=bool(begin) or len(found) > lines)


def _own(data: bytes, job: int) -> bytes:
    """What follows the job's headers; and what has none, unless its first attempt has one."""
    headers = list(HEADER.finditer(data))
    begun = any(int(header[1]) == job and header[2] == b"1" for header in headers)
    found = b"" if begun else data[: headers[0].start() if headers else None]
    ends = [header.start() for header in headers[1:]] + [len(data)]
    for header, end in zip(headers, ends):
        if int(header[1]) == job:
            found += data[header.start() : end]
    return found


def plain(line: str) -> str:
    """A line as a terminal would show it in the end: of a progress bar, its last state."""
    states = re.sub(_ESCAPE, "", line).split("\r")
    text = next((state for state in reversed(states) if state.strip()), "")
    shown = clean(text.expandtabs(8))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
