"""`carma logs`: a job's output, read from its file by the user who asks, never by the daemon."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from cli import client, output
from cli.commands.options import Label
from cli.jobs import ENDED, resolve
from cli.problems import Problem

BLOCK = 65536
LOOK_S = 0.2  # for new output
ASK_S = 2.0  # whether the job has ended


def logs(
    job: Label,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Print only the last N lines.")
    ] = None,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Print standard error, if it has a file of its own.")
    ] = False,
) -> None:
    """Print a job's output; -f follows it."""
    label = resolve(job)
    answer = client.get(f"/v1/jobs/{label}")
    path = Path(answer["stderr" if stderr else "stdout"])
    if follow:
        _await_start(answer, path)
    try:
        with path.open("rb") as file:
            _seek(file, lines)
            _copy(file)
            if follow:
                _follow(file, label)
    except OSError as error:
        if not path.exists() and answer["started_at"] is None:
            raise Problem(
                f"job {label} has not started: there is no output yet", f"see carma why {label}"
            ) from None
        raise Problem(f"cannot read {path}: {error.strerror}") from None


def _await_start(job: dict[str, Any], path: Path) -> None:
    label = job["label"]
    if not path.exists() and job["state"] not in ENDED:
        output.note(f"job {label} has no output yet; waiting for it")
    while not path.exists() and job["state"] not in ENDED:
        time.sleep(ASK_S)
        job = client.get(f"/v1/jobs/{label}")


def _follow(file: BinaryIO, label: str) -> None:
    asked = 0.0
    while True:
        now = time.monotonic()
        ended = False
        if now - asked >= ASK_S:
            ended, asked = client.get(f"/v1/jobs/{label}")["state"] in ENDED, now
        if os.fstat(file.fileno()).st_size < file.tell():  # written anew
            file.seek(0)
        _copy(file)
        if ended:
            return
        time.sleep(LOOK_S)


def _copy(file: BinaryIO) -> None:
    while block := file.read(BLOCK):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def _seek(file: BinaryIO, lines: int | None) -> None:
    """To where the last lines begin, reading from the end: logs can be large."""
    if lines is None:
        return
    at = file.seek(0, os.SEEK_END)
    tail = b""
    while at and tail.count(b"\n") <= lines:
        step = min(BLOCK, at)
        at -= step
        file.seek(at)
        tail = file.read(step) + tail
    wanted = b"".join(tail.splitlines(keepends=True)[-lines:]) if lines else b""
    file.seek(-len(wanted), os.SEEK_END)
