"""`carma submit`: the one verb that a script may call a thousand times.

It imports next to nothing: typer alone takes longer than this whole command may
(tests/test_cli_submit.py keeps the imports light).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from carmad.errors import CarmaError
from cli import client
from cli.client import exit_code, wait_for
from cli.problems import INTERRUPTED, note, report
from cli.submission import (
    is_silent,
    read,
    refuse_missing,
    settle_messages,
    tell_ignored,
    wants_json,
    warn_of_script,
)

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any


def submit(args: list[str]) -> int:
    """Submit a command or a job script; see `carma submit --help`."""
    try:
        options, body = read(args)
        tell_ignored(options)
        if not options.quiet:
            warn_of_script(body)
        settle_messages(options, body)
        if body["container"]:
            refuse_missing(body["container"])
        if options.dry_run:
            return _dry_run(body, options)
        return _submit(body, options)
    except CarmaError as error:
        return report(error, as_json=wants_json(args))


def _submit(body: dict[str, Any], options: argparse.Namespace) -> int:
    answer = client.post("/v1/jobs", body)
    label = answer["label"]
    if not options.quiet:
        _warn(answer)
    if options.json:
        print(json.dumps(answer))
    elif options.parsable:
        print(label)
    elif not options.quiet:
        print(f"Submitted batch job {label}")
    print(end="", flush=True)  # before anything waits; stdout may be closed
    silent, typed = is_silent(options), _is_typed()
    if typed and not silent:
        from cli import preflight

        asks = _is_terminal(sys.stdout) and not body["after"]
        if not preflight.is_wanted(label, str(answer["ids"][0]), asks):
            return 1
    if not options.wait:
        return 0
    return _wait([str(job) for job in answer["ids"]], label, tells=not silent and not typed)


def _is_typed() -> bool:
    """Whether it was typed on a terminal: a command that a script runs there leads no process
    group, and must not be held up."""
    try:
        own = os.getpid() == os.getpgrp()
        return own and _is_terminal(sys.stdin) and os.tcgetpgrp(sys.stdin.fileno()) == os.getpid()
    except OSError:
        return False


def _is_terminal(end: Any) -> bool:
    return end is not None and bool(end.isatty())  # None if it is closed


def _warn(answer: dict[str, Any]) -> None:
    """Print warnings, and for a job with a deadline, whether it is expected to meet it."""
    outlook = answer.get("outlook")
    for text in (*answer.get("warnings", ()), *([outlook["text"]] if outlook else [])):
        note(text)


def _wait(jobs: list[str], label: str, tells: bool) -> int:
    """The exit code of the job; of an array, that of the first task that failed. `tells`: say on
    stderr if its script stops by itself."""
    try:
        if tells:
            from cli import preflight

            preflight.crash(label, jobs[0])
        codes = [exit_code(wait_for(job)) for job in jobs]
    except KeyboardInterrupt:
        hint = f"job {label} continues; `carma wait {label}` waits, `carma cancel {label}` ends it"
        print(f"\ncarma: {hint}", file=sys.stderr)
        return INTERRUPTED
    return next((code for code in codes if code), 0)


def _dry_run(body: dict[str, Any], options: argparse.Namespace) -> int:
    answer = client.post("/v1/jobs", {**body, "dry_run": True})
    if not options.quiet:
        _warn(answer)
    if options.json:
        print(json.dumps(answer))
        return 0
    from cli import output, render

    output.show(render.dry_run(answer))
    return 0
