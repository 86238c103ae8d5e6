"""What can go wrong for `carma`, with which exit code, and how it is told. Imports stay light."""

from __future__ import annotations

import json
import sys

from carmad.errors import CarmaError

INTERRUPTED = 130


class Problem(CarmaError):
    """An error of the command line: also `code`, a stable word for programs."""

    exit_code = 1
    code = "error"


class Usage(Problem):
    exit_code = 2
    code = "usage"


class Unreachable(Problem):
    exit_code = 3
    code = "unreachable"


class Refused(Problem):
    """The daemon said no. `code` is the daemon's own word."""

    def __init__(self, message: str, hint: str, code: str) -> None:
        super().__init__(message, hint)
        self.code = code
        self.exit_code = 4 if code in FORBIDDEN else 1


FORBIDDEN = frozenset({"forbidden", "not_yours"})


def report(error: CarmaError, as_json: bool) -> int:
    """Tell about an error where its reader looks for it, and say what to exit with."""
    if as_json:
        code = error.code if isinstance(error, Problem) else Problem.code
        print(json.dumps({"error": error.message, "hint": error.hint, "code": code}))
    else:
        print(f"carma: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code if isinstance(error, Problem) else Problem.exit_code
