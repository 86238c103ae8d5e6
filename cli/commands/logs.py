"""`carma logs`: prints a job's output, reading the file as the calling user, not as the daemon.

An attempt that finds text in its log writes a header line (`carmad.attempt.supervisor`). What
follows, up to the next header, is that job's output.
"""

from __future__ import annotations

import os
import re
import sys
import time

from cli import client, output, parse
from cli.commands.options import add_job
from cli.jobs import ENDED, resolve
from cli.problems import Problem

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

    from cli.parser import Parser

BLOCK = 65536
LOOK_S = 0.2  # between checks for new output
ASK_S = 2.0  # between checks whether the job has ended
HEADER = re.compile(rb"=== carma job (\d+), attempt (\d+), \S+ ===\n")
MOST_HEADER = 100  # bytes


def logs_options(parser: Parser) -> None:
    add_job(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="keep printing until the job ends")
    add("-n", "--tail", type=parse.whole(0, 10**9), metavar="N", help="only the last N lines")
    add("--stderr", action="store_true", help="standard error, if it has a file of its own")


def _elsewhere(label: str, slurm_job: int | None) -> str:
    if slurm_job:
        return f"the output of job {label} is that of Slurm job {slurm_job}"
    return f"job {label} runs at a terminal, and its output is there"


def logs(options: Namespace) -> int:
    """Print the output of all attempts of a job; -f follows it."""
    label = resolve(options.job)
    answer = client.get(f"/v1/jobs/{label}")
    if answer.get("interactive"):
        raise Problem(_elsewhere(label, answer.get("slurm_job")))
    path: str = answer["stderr" if options.stderr else "stdout"]
    if options.follow:
        _await_start(answer, path)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - light
            _show(file, answer, options.tail, options.follow)
    except OSError as error:
        if answer["started_at"] is None and not os.path.exists(path):  # noqa: PTH110
            raise Problem(
                f"job {label} has not started: there is no output yet", f"see carma why {label}"
            ) from None
        raise Problem(f"cannot read {path}: {error.strerror}") from None
    return 0


def _await_start(job: dict[str, Any], path: str) -> None:
    label = job["label"]
    if not os.path.exists(path) and job["state"] not in ENDED:  # noqa: PTH110
        output.note(f"job {label} has no output yet; waiting for it")
    while not os.path.exists(path) and job["state"] not in ENDED:  # noqa: PTH110
        time.sleep(ASK_S)
        job = client.get(f"/v1/jobs/{label}")


def _show(file: BinaryIO, job: dict[str, Any], lines: int | None, follow: bool) -> None:
    log = Log(file)
    parts = [(owner, at, len(text)) for owner, at, text in log.read()]
    # Text before any header was written by the first job that used the file.
    is_first = job["id"] not in log.begun and (job["attempt"] > 0 or not parts)

    def is_own(owner: int | None) -> bool:
        return is_first if owner is None else owner == job["id"]

    end = file.tell()
    own = [(at, size) for owner, at, size in parts if is_own(owner)]
    for text in _texts(file, own) if lines is None else [last_lines(file, own, lines)]:
        sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    if follow:
        file.seek(end)
        _follow(log, job["label"], is_own)


class Log:
    """A log file, read from its beginning to its end, and further as it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.begun: set[int] = set()  # jobs whose first attempt has a header
        self._owner: int | None = None  # the job whose part is being read; None: before any header

    def read(self) -> Iterator[tuple[int | None, int, bytes]]:
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


def _follow(log: Log, label: str, is_own: Callable[[int | None], bool]) -> None:
    asked = 0.0
    while True:
        now = time.monotonic()
        ended = False
        if now - asked >= ASK_S:
            ended, asked = client.get(f"/v1/jobs/{label}")["state"] in ENDED, now
        for owner, _, text in log.read():
            if is_own(owner):
                sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        if ended:
            return
        time.sleep(LOOK_S)


def _texts(file: BinaryIO, parts: list[tuple[int, int]]) -> Iterator[bytes]:
    for at, size in parts:
        file.seek(at)
        yield file.read(size)


def last_lines(file: BinaryIO, parts: list[tuple[int, int]], lines: int) -> bytes:
    """The last lines of these parts, reading from the end: logs can be large."""
    tail = b""
    for text in _texts(file, parts[::-1]):
        tail = text + tail
        if tail.count(b"\n") > lines:
            break
    return b"".join(tail.splitlines(keepends=True)[-lines:]) if lines else b""
