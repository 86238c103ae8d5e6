"""The entry point of `carma`: chooses the parser, and turns problems into exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cli.problems import INTERRUPTED

PIPE_CLOSED = 141  # what a shell reports for a program killed by SIGPIPE


def main() -> None:
    if sys.stdout is None:  # closed: `carma estimate … >&-`
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  until it ends
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    try:
        code = dispatch(args)
        sys.stdout.flush()
    except SystemExit as exit:  # argparse and typer, after --help or a wrong option
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `carma queue | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def dispatch(args: list[str]) -> int:
    # Before importing typer, which would take longer than all of submit.
    if args[:1] in (["submit"], ["sub"]):
        from cli.commands.submit import submit

        return submit(args[1:])
    from cli.app import run_app

    return run_app(args)
