"""`carma logs`: prints a job's output, reading the file as the calling user, not as the daemon."""

from __future__ import annotations

import os
import sys
import time

from carma_client.logs import ASK_S, LOOK_S, Log, elsewhere
from carma_client.transport import ENDED
from cli import client, output, parse
from cli.commands.options import add_job
from cli.jobs import resolve
from cli.problems import Problem

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from cli.parser import Parser


def logs_options(parser: Parser) -> None:
    add_job(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="keep printing until the job ends")
    add("-n", "--tail", type=parse.whole(0, 10**9), metavar="N", help="only the last N lines")
    add("--stderr", action="store_true", help="standard error, if it has a file of its own")


def logs(options: Namespace) -> int:
    """Print the output of all attempts of a job; -f follows it."""
    label = resolve(options.job)
    answer = client.get(f"/v1/jobs/{label}")
    if answer.get("interactive"):
        raise Problem(elsewhere(answer))
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
    own = log.parts(job)
    end = file.tell()
    for text in _texts(file, own) if lines is None else [last_lines(file, own, lines)]:
        sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    if follow:
        file.seek(end)
        _follow(log, job["label"])


def _follow(log: Log, label: str) -> None:
    asked = 0.0
    while True:
        now = time.monotonic()
        ended = False
        if now - asked >= ASK_S:
            ended, asked = client.get(f"/v1/jobs/{label}")["state"] in ENDED, now
        for text in log.news():
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
