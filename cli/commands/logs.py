"""`carma logs`: what jobs print, read from the file as the calling user, not as the daemon."""

from __future__ import annotations

import codecs
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carma_client.logs import ASK_S, Log, blocks, elsewhere, has_log, last_lines, news, open_log
from carmad.readable import clean
from carmad.states import ENDED
from cli import client, output
from cli.app import Job, option
from cli.options import user_of
from cli.parse import whole
from cli.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO


def logs(
    job: Job = "last",
    follow: Annotated[
        bool, option("-f", "--follow", help="keep printing until the job ends")
    ] = False,
    tail: Annotated[
        int | None, option("-n", "--tail", metavar="N", read=whole(0), help="only the last N lines")
    ] = None,
    stderr: Annotated[
        bool, option("--stderr", help="standard error, if it has a file of its own")
    ] = False,
) -> int:
    """The logs of several jobs, such as an array's, are printed below their labels; `-f` follows
    one after the other."""
    answer, jobs = client.named(job)
    if not jobs:
        _print(answer, follow, tail, stderr)
    for each in jobs:
        print(f"==> {each['label']} {each['state'].replace('_', ' ')} <==", flush=True)
        if follow and each["state"] not in ENDED:
            output.note(f"following {each['label']}; carma logs -f {jobs[-1]['label']} another one")
        try:
            _print(each, follow, tail, stderr)
        except Problem as problem:
            output.note(problem.message)
    return 0


def _print(answer: dict[str, Any], follows: bool, tail: int | None, stderr: bool) -> None:
    if answer.get("interactive"):
        raise Problem(elsewhere(answer))
    path: str = answer["stderr" if stderr else "stdout"]
    if follows:
        answer = _await_start(answer, path)
    output.write(_texts(answer, path, follows, tail))


def _texts(answer: dict[str, Any], path: str, follows: bool, tail: int | None) -> Iterator[bytes]:
    """What is to be printed."""
    label = answer["label"]
    try:
        with open_log(path) as file:
            yield from _show(file, answer, tail, follows)
    except OSError as error:
        if not Path(path).exists() and has_log(answer):
            raise Problem(
                f"the log of job {label} is gone: {path} was deleted or moved",
                f"its last lines are kept if it fails: carma why {label}, once it has ended",
            ) from None
        if answer["started_at"] is None and not Path(path).exists():
            raise Problem(
                f"job {label} has not started: there is no output yet", f"see carma why {label}"
            ) from None
        raise Problem(f"cannot read {path}: {error.strerror}") from None


def _await_start(job: dict[str, Any], path: str) -> dict[str, Any]:
    """Wait for the log, which a job that begins creates at once."""
    label, is_late = job["label"], False
    if not (Path(path).exists() or job["state"] in ENDED or has_log(job)):
        output.note(f"job {label} has no output yet; waiting for it")
    while not (Path(path).exists() or job["state"] in ENDED or is_late):
        is_late = has_log(job)
        time.sleep(ASK_S)
        job = _again(label)
    return job


def _again(label: str) -> dict[str, Any]:
    """The job as it is now; carmad may be restarting."""
    job: dict[str, Any] = client.patiently(lambda: client.get(f"/v1/jobs/{label}"))
    return job


def _show(file: BinaryIO, job: dict[str, Any], lines: int | None, follows: bool) -> Iterator[bytes]:
    log, shown = Log(file), _harmless() if _may_attack(job) else bytes
    own = log.parts(job)
    end = file.tell()
    for text in blocks(file, own) if lines is None else last_lines(file, own, lines):
        yield shown(text)
    if follows:
        file.seek(end)

        def has_ended() -> bool:
            return _again(job["label"])["state"] in ENDED

        yield from map(shown, news(log.news, has_ended, time.sleep, ASK_S))


def _may_attack(job: dict[str, Any]) -> bool:
    """Whether it is somebody else's and goes to a terminal, which its escape sequences can make
    show, paste or answer what its user likes."""
    return sys.stdout.isatty() and job["user"] != user_of(None, mine=True)


def _harmless() -> Callable[[bytes], bytes]:
    """Leaves text, lines and progress bars of what is shown piece by piece."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(text: bytes) -> bytes:
        # Every second part is white space, which stays.
        parts = re.split(r"([\n\r\t]+)", decoder.decode(text))
        parts[::2] = map(clean, parts[::2])
        return "".join(parts).encode()

    return show
