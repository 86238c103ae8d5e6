"""The entry point of `carma`: chooses who reads the words, and turns problems into exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from carmad.errors import CarmaError
from cli import hot
from cli.problems import INTERRUPTED, refusal, report
from cli.verbs import find_word

PIPE_CLOSED = 141  # what a shell reports for a program killed by SIGPIPE
OURS = ("carma", "main.py", "-c", "-m")  # `python -m cli.main`
COMPLETE = "_CARMA_COMPLETE"  # set by the scripts that typer makes for shells
OF_THE_USER = ("run", "shell", "attach")  # after these, --json is another program's


def main() -> None:
    if sys.stdout is None:  # closed: `carma estimate … >&-`
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until it ends
    name = Path(sys.argv[0]).name
    try:
        word = None if name in OURS else find_word(name)  # a link to this program, such as sbatch
    except CarmaError as error:
        sys.exit(report(error, as_json=False))
    sys.exit(word.run(sys.argv[1:]) if word else run(sys.argv[1:]))


def run(args: list[str]) -> int:
    try:
        code = dispatch(args)
        sys.stdout.flush()
    except CarmaError as error:
        return report(error, as_json="--json" in args and args[0] not in OF_THE_USER)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `carma queue | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        return report(refusal(error), as_json=False)
    return code


def dispatch(args: list[str]) -> int:
    if COMPLETE not in os.environ and args and args[0] in hot.TABLES:
        with suppress(hot.AsksForHelp):
            return hot.run(args[0], args[1:])
    from cli import app

    if COMPLETE in os.environ:
        app.build().main([], prog_name="carma", complete_var=COMPLETE)
    return app.run(_ask_for_help(args))


def _ask_for_help(words: list[str]) -> list[str]:
    """`help VERB` as `VERB --help`."""
    if words[:1] != ["help"]:
        return words
    return ["--help-all"] if words[1:] == ["--all"] else [*words[1:], "--help"]


if __name__ == "__main__":
    main()
