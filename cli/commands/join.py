"""Processes of jobs that CARMA did not start: `carma attach` and `carma exec` begin one beside a
running job, `carma adopt` makes a job of one."""

from __future__ import annotations

import os
import sys

from carmad.errors import CarmaError
from cli import client, output
from cli.client import resolve
from cli.options import add_json
from cli.problems import Problem, Usage, report

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import NoReturn

    from cli.parser import Parser

# Of this terminal, not of the one from which the job was submitted.
OWN = (
    *("TERM", "COLORTERM", "DISPLAY", "XAUTHORITY", "SSH_AUTH_SOCK", "SSH_CONNECTION", "SSH_TTY"),
    *("TMUX", "TMUX_PANE", "STY"),
)
USAGE = {
    "attach": "Usage: carma attach JOB\n\nStart a shell in the environment of a running job of"
    " yours, on its GPUs. It ends with the job.",
    "exec": "Usage: carma exec JOB [--] COMMAND [ARG…]\n\nRun a command in the environment of a"
    " running job of yours, on its GPUs. It ends with the job.",
}


def attach(args: list[str]) -> int:
    return _join("attach", args)


def exec(args: list[str]) -> int:
    return _join("exec", args)


def _join(verb: str, args: list[str]) -> int:
    if args[:1] in (["-h"], ["--help"]):
        print(USAGE[verb])
        return 0
    try:
        _become(*_read(verb, args))
    except CarmaError as error:
        return report(error, as_json=False)


def _read(verb: str, args: list[str]) -> tuple[str, list[str]]:
    """The job, and the command."""
    hint = f"see `carma {verb} --help`"
    if not args or args[0].startswith("-"):
        raise Usage("name a running job of yours", hint)
    label, *command = args
    if verb == "attach":
        if command:
            raise Usage("carma attach takes only a job", "use `carma exec JOB COMMAND`")
        command = [os.environ.get("SHELL") or "/bin/sh", "-i"]
    elif command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise Usage("nothing to run: give a command after the job", hint)
    return resolve(label), command


def _become(label: str, command: list[str]) -> NoReturn:
    taken = client.post(f"/v1/jobs/{label}/join", {})
    env = taken["env"] | {name: os.environ[name] for name in OWN if name in os.environ}
    sys.stdout.flush()
    try:
        os.chdir(taken["cwd"])
        os.execvpe(command[0], command, env)
    except OSError as error:
        what = "command not found" if isinstance(error, FileNotFoundError) else error.strerror
        raise Problem(f"cannot run {command[0]} in {taken['cwd']}: {what}") from None


CHOSEN = ("name", "memory_mib", "time_limit_s")
MAX_PID = (1 << 31) - 1


def adopt_options(parser: Parser) -> None:
    from carmad.options import OPTIONS
    from cli.parse import whole
    from cli.submission import add_option

    parser.add_argument("pid", type=whole(1, MAX_PID), metavar="PID", help="a process on a GPU")
    for name in CHOSEN:
        add_option(parser, OPTIONS[name])
    add_json(parser)


def adopt(options: Namespace) -> int:
    body = {"pid": options.pid, **{name: getattr(options, name) for name in CHOSEN}}
    job = client.post("/v1/adopt", body)
    if options.json:
        output.print_json(job)
        return 0
    gpus = ", ".join(str(gpu["index"]) for gpu in job["gpus"])
    print(f"Process {options.pid} is now job {job['label']}, on GPU {gpus}")
    return 0
