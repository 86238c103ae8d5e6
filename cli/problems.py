"""Errors of `carma`, and how they are reported. Imports stay light."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

from carma_client import FORBIDDEN as FORBIDDEN
from carma_client import Problem as Problem
from carma_client import Refused as Refused
from carma_client import Unknown as Unknown
from carma_client import Unreachable as Unreachable
from carmad.errors import CarmaError
from carmad.readable import clean_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERRUPTED = 130
OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def note(text: str, prefix: str = "carma") -> None:
    """On standard error. It may quote what others wrote: the path of a log, a line of a script."""
    print(f"{prefix}: {clean_lines(text)}", file=sys.stderr, flush=True)


class Usage(Problem):
    exit_code = 2
    code = "usage"


NEAR = 0.7  # how alike a misspelt word and the right one are
INSTEAD = {  # of options that CARMA does not have, or had
    "--priority": "use --nice: the higher, the later",
    "--color": "use NO_COLOR=1 or FORCE_COLOR=1",
    "carma doctor --model": "use `carma doctor --models --json`",
    "carma history --export": "use `carma simulate --history --export FILE`",
    "carma top --watch": "use --every SECONDS",
    "carma top -w": "use --every SECONDS",
    **{
        f"carma report --{part}": "use --step TIME --stages 'load=TIME forward=TIME …'"
        for part in ("load", "forward", "backward", "communication", "sync")
    },
}


def nearest(word: str, names: Iterable[str]) -> str:
    """Which of the names may have been meant; "" if none is alike."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, set(names), n=1, cutoff=NEAR)), "")


def no_option(command: str, flag: str, known: Iterable[str]) -> Usage:
    """`known`: the options that there are."""
    near = nearest(flag, (name for name in known if name.startswith("--")))
    hint = f"did you mean {near}?" if near else f"see `{command} --help`"
    hint = INSTEAD.get(f"{command} {flag}") or INSTEAD.get(flag, hint)
    if command in RUNS:
        end = "" if hint.endswith("?") else "."
        hint += f"{end} Options of your program go after it: {command} -- python train.py {flag} …"
    return Usage(f"{command} has no option {flag}", hint)


def no_value(flag: str) -> Usage:
    return Usage(f"{flag} takes no value", f"write {flag} alone")


RUNS = ("carma submit", "carma run", "carma estimate")  # a command of the user's


def refusal(error: OSError) -> Problem:
    """What the kernel refused. Nothing more is written to standard output, as that may be it."""
    import os

    why = error.strerror or str(error)
    if error.errno in OF_OUTPUT:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = error.filename or "the output"
        return Problem(f"cannot write {where}: {why}", "free some space, or write it elsewhere")
    if error.errno == errno.ENOENT and error.filename is None:  # as os.getcwd says it
        return Problem("the current directory has been deleted", "cd to one that exists")
    return Problem(f"{error.filename}: {why}" if error.filename else why)


def report(error: CarmaError, as_json: bool) -> int:
    """Report an error, as text or JSON. Returns the exit code."""
    if as_json:
        import json

        code = error.code if isinstance(error, Problem) else Problem.code
        print(json.dumps({"error": error.message, "hint": error.hint, "code": code}))
    else:
        note(error.message)
        if error.hint:
            note(error.hint, "hint")
    return error.exit_code if isinstance(error, Problem) else Problem.exit_code
