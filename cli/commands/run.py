"""`carma run` and `carma shell`: jobs that run here, in this terminal (`cli.interactive`)."""

from __future__ import annotations

import os

from carmad.errors import CarmaError
from cli.interactive import is_in_slurm, is_repeatable, run_job
from cli.problems import Usage, report
from cli.submission import (
    HELP_HINT,
    build_parser,
    read,
    settle_messages,
    tell_ignored,
    warn_of_choice,
)

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any

    from cli.parser import Parser

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


def run(args: list[str]) -> int:
    return _run("run", args)


def shell(args: list[str]) -> int:
    return _run("shell", args)


def _run(verb: str, args: list[str]) -> int:
    try:
        options, body = _read(verb, args)
        tell_ignored(options)
        if not (options.quiet or is_in_slurm()):
            warn_of_choice(options)
        settle_messages(options, body)
        return run_job(body, quiet=options.quiet)
    except CarmaError as error:
        return report(error, as_json=False)


def parser_of(verb: str) -> Parser:
    """That of `carma submit`, without what makes no sense at a terminal."""
    parser = build_parser()
    parser.prog = f"carma {verb}"
    command = " [--] COMMAND [ARG…]" if verb == "run" else ""
    parser.usage = f"carma {verb} [OPTION…]{command}"
    parser.description = (
        f"Wait for GPUs, then {'run a command' if verb == 'run' else 'start a shell'} here, in this"
        " terminal and with its environment, as a job like any other."
    )
    parser.epilog = "The exit code is the command's. Ctrl-C while waiting leaves the line."
    for action in parser._actions:
        if action.dest in ELSEWHERE:
            action.help = "==SUPPRESS=="
        elif action.dest == "requeue":
            action.help = "let CARMA run it again, away from a terminal (default)"
    return parser


def _read(verb: str, args: list[str]) -> tuple[Any, dict[str, Any]]:
    parser = parser_of(verb)
    words, command, _ = parser.split(args)
    given = parser.parse_args(words)
    for name, why in ELSEWHERE.items():
        if getattr(given, name) != parser.get_default(name):
            flag = next(a.option_strings[-1] for a in parser._actions if a.dest == name)
            raise Usage(f"{flag} is not for `carma {verb}`", why)
    if given.requeue and not is_repeatable():
        raise Usage("--requeue is not for a terminal", "there, only you can start it again")
    if verb == "shell":
        if command:
            raise Usage("carma shell takes no command", "use `carma run`")
        args = [*words, "--", os.environ.get("SHELL") or "/bin/sh", "-i"]
    elif not command:
        raise Usage("nothing to run: give a command", HELP_HINT.replace("submit", verb))
    options, body = read(args, parser)
    body.pop("script", None)  # nothing waits in between that could change it
    if body["array"]:
        raise Usage("the script asks for an array or a sweep", "use carma submit")
    if options.name is None and verb == "shell":
        body["name"] = "shell"
    return options, body | {"stdout": None, "stderr": None, "interactive": True}
