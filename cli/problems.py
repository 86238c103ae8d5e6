"""Errors of `carma`, their exit codes, and how they are reported. Imports stay light."""

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


class Unknown(Unreachable):
    """It may have been done or not: nothing said so."""

    code = "unknown"


class Refused(Problem):
    """The daemon refused. `code` is the daemon's."""

    def __init__(self, message: str, hint: str, code: str) -> None:
        super().__init__(message, hint)
        self.code = code
        self.exit_code = 4 if code in FORBIDDEN else 1


FORBIDDEN = frozenset({"forbidden", "not_yours"})


def report(error: CarmaError, as_json: bool) -> int:
    """Report an error, as text or JSON. Returns the exit code."""
    if as_json:
        code = error.code if isinstance(error, Problem) else Problem.code
        print(json.dumps({"error": error.message, "hint": error.hint, "code": code}))
    else:
        print(f"carma: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code if isinstance(error, Problem) else Problem.exit_code
