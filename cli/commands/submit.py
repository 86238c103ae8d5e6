"""`carma submit`: makes the request, sends it, and says what stands against the job. It imports
next to nothing: scripts call it a thousand times."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from carmad.errors import CarmaError
from cli import client
from cli.client import exit_code, wait_for
from cli.missing import refuse_missing
from cli.problems import INTERRUPTED, Refused, note, report
from cli.submission import (
    complete,
    is_silent,
    settle_messages,
    tell_ignored,
    warn_of_choice,
    warn_of_input,
    warn_of_script,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any


def submit(options: Namespace) -> int:
    """In a job script, #CARMA lines take these options; the command line overrides them. A job
    script is copied now: later changes to it do not reach the job. Options of sbatch that mean
    nothing on one server, such as --partition, are ignored. With --wait, the exit code is the
    job's, or 128+N if signal N killed it. The job inherits the environment and the limits (ulimit)
    of this shell.

    \b
    carma submit --gpu-mem 12G --time 2h python train.py
    carma submit --param lr=1e-3,1e-4 --param seed=0-4 -- python train.py
    carma submit --after last --notify end,fail job.sh
    """
    options, body = complete(options, options.command or ())
    tell_ignored(options)
    if not options.quiet:
        warn_of_script(body)
        warn_of_choice(options)
        warn_of_input()
    settle_messages(options, body)
    refuse_missing(options, body)
    try:
        return _dry_run(body, options) if options.dry_run else _submit(body, options)
    except Refused as refused:
        if refused.code != "running":  # as `--unless-running` asks
            raise
        return _tell_running(refused, options)


def _submit(body: dict[str, Any], options: Namespace) -> int:
    answer = client.post("/v1/jobs", body)
    label = answer["label"]
    if not options.quiet:
        _warn(answer)
    try:
        if options.json:
            print(json.dumps(answer))
        elif options.parsable:
            print(label)
        elif not options.quiet:
            print(f"Submitted batch job {label}")
        print(end="", flush=True)  # before anything waits; stdout may be closed
    except OSError as error:
        why = error.strerror or str(error)
        error.strerror = f"{why}; the job is submitted: {label}"
        raise
    silent, typed = is_silent(options), _is_typed()
    if typed and not silent and not options.wait and _is_terminal(sys.stdout):
        _tell_next(str(answer["ids"][0]))
    if typed and not silent:
        asks = _is_terminal(sys.stdout) and not body["after"]
        if not is_wanted(label, str(answer["ids"][0]), asks):
            return 1
    if not options.wait:
        return 0
    return _wait([str(job) for job in answer["ids"]], label, tells=not silent and not typed)


def _tell_running(refused: Refused, options: Namespace) -> int:
    """Nothing is wrong: cron is not to mail anybody."""
    if options.json:
        report(refused, as_json=True)
    elif not options.quiet:
        note(refused.message)
    return 0


def _tell_next(first: str) -> None:
    """Where the log goes, and what to type next. `first`: the job, or an array's first task."""
    with contextlib.suppress(CarmaError):
        job = client.get(f"/v1/jobs/{first}")
        log = job["stdout"].removeprefix(f"{Path.cwd()}/")
        its = "the first task's" if "_" in job["label"] else "its"
        note(f"{its} log is {log}; follow it: carma logs -f; why it waits: carma why")


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
    """The exit code of the job, or of the first task of an array that failed. `tells`: say on
    stderr if the script stops by itself, or needs more than a GPU has."""
    try:
        if tells:
            find_doubt(label, jobs[0])
        codes = [exit_code(wait_for(job)) for job in jobs]
    except KeyboardInterrupt:
        hint = f"job {label} continues; `carma wait {label}` waits, `carma cancel {label}` ends it"
        print(f"\ncarma: {hint}", file=sys.stderr)
        return INTERRUPTED
    return next((code for code in codes if code), 0)


def _dry_run(body: dict[str, Any], options: Namespace) -> int:
    answer = client.post("/v1/jobs", {**body, "dry_run": True})
    if not options.quiet:
        _warn(answer)
    if options.json:
        print(json.dumps(answer))
        return 0
    from cli import output, render

    output.show(render.dry_run(answer))
    if body["gpus"] and body["memory_mib"] is None and not options.quiet:
        _estimate(body)
    return 0


def _estimate(body: dict[str, Any]) -> None:
    """Say what stands against the job that only a trial of its script shows."""
    asked = {name: value for name, value in body.items() if name != "script"}
    with contextlib.suppress(CarmaError):
        _tell(client.post("/v1/estimate", asked, ESTIMATE_S, again=True))


def _tell(answer: dict[str, Any], of: str = "") -> str:
    """Say what stands against a job or an estimate, and return it; "" if nothing is known."""
    doubt = ""
    if answer.get("crash"):
        doubt = f"your script stops {answer['crash']}"
    elif answer.get("too_large"):
        doubt = f"your job {answer['too_large']}"
    if doubt:
        note(f"{of}{doubt}")
    return doubt


ESTIMATE_S = 60.0  # of a dry run
WITHIN_S = 20.0
QUIET_S = 1.0  # most jobs are known by then: nothing is said
LATER_S = 600.0
FIRST_S, POLL_S = 0.02, 0.25  # between the first two looks, and at most: most jobs start at once


def is_wanted(label: str, first: str, asks: bool) -> bool:
    """Whether the job shall stay in the queue. `first`: itself, or the first task of the array.
    `asks`: False to warn only."""
    try:
        doubt = find_doubt(label, first, patience=True)
    except KeyboardInterrupt:
        note(f"job {label} stays in the queue; `carma why {label}` tells more")
        return True
    if not doubt or not asks or _keeps(label):
        return True
    client.post("/v1/cancel", {"select": label, "user": None})
    note(f"job {label} is cancelled")
    return False


def find_doubt(label: str, first: str, patience: bool = False) -> str:
    """Say how the script stops, or that no GPU has what it needs, and return it if the job still
    waits; "" if there is nothing of that, or it is not known in time. `patience`: ask for it, if it
    takes long; but only while the job waits: when it starts, its owner has the terminal back."""
    begun = time.monotonic()
    told = not patience
    with contextlib.suppress(CarmaError):
        while (waited_s := time.monotonic() - begun) < WITHIN_S:
            job = client.get(f"/v1/jobs/{first}")
            if job["state"] != "pending" and (patience or not job.get("estimating")):
                if job.get("estimating"):
                    _tell_later(label, first)
                doubt = _tell(job)
                return doubt if job["state"] == "queued" else ""
            if waited_s > QUIET_S and not told:
                told = True
                note("trying its first steps without a GPU; Ctrl-C leaves it to the queue")
            time.sleep(min(POLL_S, FIRST_S + waited_s))
        if patience:
            note(f"still being tried: `carma why {label}` will tell")
            _tell_later(label, first)
    return ""


def _tell_later(label: str, first: str) -> None:
    """Leave a process behind which says what stands against the job, once that is known, if it has
    not ended by then and the terminal is still there. Its own process group keeps Ctrl-C from it:
    that is for what is typed next."""
    if not _is_terminal(sys.stderr) or os.fork():
        return
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(nowhere, fd)  # whoever reads them shall see their end
        until = time.monotonic() + LATER_S
        while (job := client.get(f"/v1/jobs/{first}")).get("estimating"):
            if time.monotonic() > until:
                return
            time.sleep(POLL_S)
        if not job.get("ended_at"):
            _tell(job, f"job {label}: ")
    except (CarmaError, OSError):
        pass  # `carma why` tells it, too
    finally:
        os._exit(0)


def _keeps(label: str) -> bool:
    try:
        return input(f"Keep job {label} in the queue? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return True
