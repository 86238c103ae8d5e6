"""Following jobs: `logs` prints what they print, reading the file as the calling user, not as the
daemon; `watch` prints what happens to them; `notify` checks where messages about that go."""

from __future__ import annotations

import json
import os
import re
import sys
import time

from carma_client.logs import ASK_S, LOOK_S, Log, blocks, elsewhere, has_log, last_lines, open_log
from carmad.readable import clean
from carmad.states import ENDED
from cli import client, output, parse
from cli.client import events
from cli.options import add_job, add_user, check, selection, user_of
from cli.problems import Problem

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

    from cli.parser import Parser


def logs_options(parser: Parser) -> None:
    add_job(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="keep printing until the job ends")
    add("-n", "--tail", type=parse.whole(0, 10**9), metavar="N", help="only the last N lines")
    add("--stderr", action="store_true", help="standard error, if it has a file of its own")


def logs(options: Namespace) -> int:
    """The logs of several jobs, such as an array's, are printed below their labels; `-f` follows
    one after the other."""
    answer, jobs = client.named(options.job)
    if not jobs:
        _print(answer, options)
    for job in jobs:
        print(f"==> {job['label']} {job['state'].replace('_', ' ')} <==", flush=True)
        if options.follow and job["state"] not in ENDED:
            output.note(f"following {job['label']}; carma logs -f {jobs[-1]['label']} another one")
        try:
            _print(job, options)
        except Problem as problem:
            output.note(problem.message)
    return 0


def _print(answer: dict[str, Any], options: Namespace) -> None:
    if answer.get("interactive"):
        raise Problem(elsewhere(answer))
    path: str = answer["stderr" if options.stderr else "stdout"]
    if options.follow:
        answer = _await_start(answer, path)
    output.write(_texts(answer, path, options))


def _texts(answer: dict[str, Any], path: str, options: Namespace) -> Iterator[bytes]:
    """What is to be printed."""
    label = answer["label"]
    try:
        with open_log(path) as file:
            yield from _show(file, answer, options.tail, options.follow)
    except OSError as error:
        if not os.path.exists(path) and has_log(answer):  # noqa: PTH110
            raise Problem(
                f"the log of job {label} is gone: {path} was deleted or moved",
                f"its last lines are kept if it fails: carma why {label}, once it has ended",
            ) from None
        if answer["started_at"] is None and not os.path.exists(path):  # noqa: PTH110
            raise Problem(
                f"job {label} has not started: there is no output yet", f"see carma why {label}"
            ) from None
        raise Problem(f"cannot read {path}: {error.strerror}") from None


def _await_start(job: dict[str, Any], path: str) -> dict[str, Any]:
    """Wait for the log, which a job that begins creates at once."""
    label, is_late = job["label"], False
    if not (os.path.exists(path) or job["state"] in ENDED or has_log(job)):  # noqa: PTH110
        output.note(f"job {label} has no output yet; waiting for it")
    while not (os.path.exists(path) or job["state"] in ENDED or is_late):  # noqa: PTH110
        is_late = has_log(job)
        time.sleep(ASK_S)
        job = client.get(f"/v1/jobs/{label}")
    return job


def _show(file: BinaryIO, job: dict[str, Any], lines: int | None, follow: bool) -> Iterator[bytes]:
    log, shown = Log(file), _harmless() if _may_attack(job) else bytes
    own = log.parts(job)
    end = file.tell()
    for text in blocks(file, own) if lines is None else last_lines(file, own, lines):
        yield shown(text)
    if follow:
        file.seek(end)
        yield from _follow(log, job["label"], shown)


def _may_attack(job: dict[str, Any]) -> bool:
    """Whether it is somebody else's and goes to a terminal, which its escape sequences can make
    show, paste or answer what its user likes."""
    return sys.stdout.isatty() and job["user"] != user_of(None, mine=True)


def _harmless() -> Callable[[bytes], bytes]:
    """Leaves text, lines and progress bars of what is shown piece by piece."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(text: bytes) -> bytes:
        # Every second part is white space, which stays.
        parts = re.split(r"([\n\r\t]+)", decoder.decode(text))
        parts[::2] = map(clean, parts[::2])
        return "".join(parts).encode()

    return show


def _follow(log: Log, label: str, shown: Callable[[bytes], bytes]) -> Iterator[bytes]:
    yield output.NOW
    asked = 0.0
    while True:
        now = time.monotonic()
        ended = False
        if now - asked >= ASK_S:
            ended, asked = client.get(f"/v1/jobs/{label}")["state"] in ENDED, now
        for text in log.news():
            yield shown(text)
        yield output.NOW
        if ended:
            return
        time.sleep(LOOK_S)


def watch_options(parser: Parser) -> None:
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help="job ids: 42, 1,3,5-8, 42_3, last, or all (yours); ends when they all have",
    )
    add_user(parser)
    parser.add_argument("--me", action="store_true", help="only my jobs")
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="begin with what happened since then, if the daemon still knows: 10m or 2026-11-20",
    )
    parser.add_argument(
        "--json", action="store_true", help="print each event as a line of JSON, for programs"
    )


def watch(options: Namespace) -> int:
    follow(
        options.json,
        select=selection(options.jobs) if options.jobs else None,
        user=user_of(options.user, options.me),
        since=check(parse.since, options.since),
    )
    return 0


def follow(as_json: bool, **query: object) -> None:
    """Print what happens: to the `select`ed jobs, until they have ended, or to all."""
    for event in events(output.note, **query):
        if as_json:
            print(json.dumps(event), flush=True)
        elif event["event"] == "missed":
            output.note(event["text"])
        elif event["event"] != "watching":
            print(line(event), flush=True)


def line(event: dict[str, Any]) -> str:
    from cli.text import local_time

    job, gpu = event.get("job"), event.get("gpu")
    who = "carmad"
    if job:
        label = job["label"].partition("_")[0] if "count" in event else job["label"]
        who = f"job {label}" + (f" {job['name']}" if job["name"] != "-" else "")
        who += f" ({job['user']})"
    elif gpu:
        who = f"GPU {gpu['id'] if gpu['index'] is None else gpu['index']}"
    return clean(f"{local_time(event['at'])}  {who}: {event['text']}")


def notify_options(parser: Parser) -> None:
    parser.add_argument("--test", action="store_true", help="send a message to all addresses now")


def notify(options: Namespace) -> int:
    """The addresses are in ~/.config/carma/notify.conf, which only you may read: one of Apprise's
    on each line, such as mailtos://USER:PASSWORD@HOST or slack://TOKEN. Without that file, you get
    mail, if the server sends any.
    """
    from cli.messages import say_where, send_test

    if options.test:
        return send_test()
    say_where()
    return 0
