"""`carma run` and `carma shell`: jobs that run here, in this terminal (`cli.interactive`), and
`carma run --pid`, which makes a job of a process that CARMA did not start."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Annotated, Any

from cli import client
from cli.app import UserCommand, option, takes
from cli.interactive import is_in_slurm, is_repeatable, run_job
from cli.options import JOB, SUBMIT, settle
from cli.parse import whole
from cli.problems import Usage
from cli.submission import complete, settle_messages, tell_ignored, warn_of_choice

# Options of `carma submit` that make no sense here, and why.
ELSEWHERE = {
    **dict.fromkeys(("stdout", "stderr"), "redirect the output with > in this shell"),
    **dict.fromkeys(("wait", "parsable", "json", "anyway"), "it always waits, here"),
    **dict.fromkeys(("array", "param", "params", "zip"), "use carma submit"),
    **dict.fromkeys(("held", "unless_running"), "use carma submit"),
    "dry_run": "use carma submit --dry-run",
    "wrap": "give the command, or run `carma shell`",
    "chdir": "cd there first",
    "export": "it has this shell's environment: export the variable first",
    "no_copy": "a script runs where it is",
    "conda_env": "activate the environment in this shell first",
    "container": "use carma submit, or give `podman run …` as the command",
}
ADOPTED = ("name", "memory_mib", "time_limit_s")  # options of a process that runs already


@takes(SUBMIT, without=ELSEWHERE)
def run(
    command: UserCommand = None,
    pid: Annotated[
        int | None,
        option(
            "--pid",
            read=whole(1),
            metavar="PID",
            help="instead of a command: make a job of this process of yours, which already runs on"
            " a GPU; only --name, --gpu-mem and --time go with it",
        ),
    ] = None,
    **given: Any,
) -> int:
    """It has this terminal and its environment, and is a job like any other. The exit code is the
    command's, or 128+N if signal N ended it. Ctrl-C while it waits leaves the line."""
    if pid is not None:
        return _adopt(pid, command, settle(given))
    if not command or command == ["--"]:
        raise Usage("nothing to run: give a command", "see `carma run --help`")
    return _run(given, command)


@takes(SUBMIT, without=ELSEWHERE)
def shell(**given: Any) -> int:
    """It has this terminal and its environment, and is a job like any other. The exit code is the
    shell's. Ctrl-C while it waits leaves the line."""
    given["name"] = given["name"] or "shell"
    return _run(given, ["--", os.environ.get("SHELL") or "/bin/sh", "-i"])


def _run(given: dict[str, Any], command: list[str]) -> int:
    if given["requeue"] and not is_repeatable():
        raise Usage("--requeue is not for a terminal", "there, only you can start it again")
    options, body = complete(Namespace(**given), command)
    body.pop("script", None)  # nothing waits in between that could change it
    if body["array"]:
        raise Usage("the script asks for an array or a sweep", "use carma submit")
    tell_ignored(options)
    if not (options.quiet or is_in_slurm()):
        warn_of_choice(options)
    settle_messages(options, body)
    return run_job(
        body | {"stdout": None, "stderr": None, "interactive": True}, quiet=bool(options.quiet)
    )


def _adopt(pid: int, command: list[str] | None, given: dict[str, Any]) -> int:
    others = [name for name, value in given.items() if value is not None and name not in ADOPTED]
    if command or others:
        what = "a command" if command else JOB[others[0]].flag
        raise Usage(f"--pid does not go with {what}", "only --name, --gpu-mem and --time do")
    job = client.post("/v1/adopt", {"pid": pid, **{name: given[name] for name in ADOPTED}})
    gpus = ", ".join(str(gpu["index"]) for gpu in job["gpus"])
    print(f"Process {pid} is now job {job['label']}, on GPU {gpus}")
    return 0
