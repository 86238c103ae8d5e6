"""The server and its GPUs: `status`, `top`, `gpus`, `drain`."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Annotated

from cli import client, output, overview, parse
from cli.app import Json, Me, User, argument, complete_jobs, option
from cli.options import WATCH_S
from cli.problems import Usage


def status(
    jobs: Annotated[
        list[str] | None,
        argument(
            "JOB",
            "with --follow: only these: 42, 1,3,5-8, 42_3, last, or all (yours); it ends when they"
            " all have",
            autocompletion=complete_jobs,
        ),
    ] = None,
    follow: Annotated[
        bool,
        option(
            "-f",
            "--follow",
            help="print what happens, as it happens: jobs that start, run, end, are retried; GPUs"
            " that are lost or drained",
        ),
    ] = False,
    user: User = None,
    me: Me = False,
    since: Annotated[
        str | None,
        option(
            "--since",
            metavar="TIME",
            read=parse.since,
            help="with --follow: begin with what happened since then, if the daemon still knows:"
            " 10m or 2026-11-20",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """With --follow --json, each event is a line of JSON, for programs."""
    if follow:
        from cli.commands import events

        return events.follow(jobs, user, me, since, json)
    if jobs or user or me or since:
        raise Usage("which jobs and since when is for --follow", "see `carma queue`, too")
    answer = client.get("/v1/status")
    if json:
        output.print_json(answer)
        return 0
    tty = sys.stdout.isatty()
    width, height = get_terminal_size() if tty else (output.PIPE_WIDTH, 0)
    lines = height - 1 if tty else None  # and the shell's next prompt
    output.show(overview.status(answer, width, lines, bars=tty, plain=output.is_ascii()))
    return 0


def top(
    every: Annotated[
        float,
        option(
            "--every",
            metavar="SECONDS",
            read=parse.interval,
            help=f"how often it is drawn (default: {WATCH_S:g})",
        ),
    ] = WATCH_S,
    once: Annotated[bool, option("-1", "--once", help="print once and exit")] = False,
) -> int:
    why = output.why_no_screen()
    if once or why:
        if not once and sys.stdout.isatty():
            output.note(f"printed once: {why}")
        return status()
    from cli import top as screen

    return screen.run(screen.status, every)


def gpus(json: Json = False) -> int:
    answer = client.get("/v1/gpus")
    if json:
        output.print_json(answer)
    else:
        output.show(overview.gpu_report(answer))
    return 0


def drain(
    gpus: Annotated[list[str], argument("GPU", "GPU indices or UUIDs, or all")],
    reason: Annotated[
        str, option("-r", "--reason", metavar="TEXT", help="reason shown to users")
    ] = "maintenance",
    move: Annotated[
        bool,
        option(
            "--move",
            help="let jobs on them go elsewhere, as soon as there is room; see `carma suspend`",
        ),
    ] = False,
    undo: Annotated[bool, option("--undo", help="start jobs on drained GPUs again")] = False,
    json: Json = False,
) -> int:
    verb, body = ("resume", {}) if undo else ("drain", {"reason": reason, "move": move})
    for gpu in gpus:
        answer = client.post(f"/v1/gpus/{gpu}/{verb}", body)
        if json:
            output.print_json(answer)
        for one in answer["gpus"] if not json else ():
            print(f"GPU {one['index']}: {'drained' if one['drained'] else 'takes jobs'}")
    return 0
