"""Errors of `carma`, and how they are reported. Imports stay light."""

from __future__ import annotations

import json
import sys

from carma_client.errors import FORBIDDEN, Problem, Refused, Unknown, Unreachable
from carmad.errors import CarmaError

__all__ = [
    "FORBIDDEN",
    "INTERRUPTED",
    "Problem",
    "Refused",
    "Unknown",
    "Unreachable",
    "Usage",
    "report",
]

INTERRUPTED = 130


class Usage(Problem):
    exit_code = 2
    code = "usage"


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
