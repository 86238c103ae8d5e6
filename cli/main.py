"""The entry point of `carma`: chooses the parser, and turns problems into exit codes."""

from __future__ import annotations

import os
import sys

from carmad import paths
from carmad.errors import CarmaError
from cli.problems import INTERRUPTED, report
from cli.verbs import ARGPARSE, BY_NAME, ITSELF

PIPE_CLOSED = 141  # what a shell reports for a program killed by SIGPIPE


def main() -> None:
    if sys.stdout is None:  # closed: `carma estimate … >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - light; open until it ends
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    try:
        code = dispatch(args)
        sys.stdout.flush()
    except CarmaError as error:
        return report(error, as_json="--json" in args)
    except SystemExit as exit:  # argparse and typer, after --help or a wrong option
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `carma queue | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def dispatch(args: list[str]) -> int:
    color, words = _color(args)
    if color:
        from cli import output

        output.choose_color(color)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    verb = BY_NAME.get(words[0]) if words else None
    if verb is not None and not paths.is_served():
        from cli import cluster

        verb = cluster.verb(verb)
    if verb is None:
        from cli.help import run_without_verb

        return run_without_verb(words)
    if verb.reads == ITSELF:
        return int(verb.function()(words[1:]))
    if verb.reads == ARGPARSE:
        return int(verb.function()(verb.read(words[1:])))
    from cli.app import run_typer

    return run_typer(verb, words[1:])


def _color(args: list[str]) -> tuple[str, list[str]]:
    """What `--color` in front of the verb says, and the words from the verb on."""
    first = args[0] if args else ""
    if first == "--color":
        return args[1] if len(args) > 1 else "", args[2:]
    if first.startswith("--color="):
        return first.removeprefix("--color="), args[1:]
    return "", args
