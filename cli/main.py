"""The entry point of `carma`: chooses the parser, and turns problems into exit codes."""

from __future__ import annotations

import os
import sys

from carmad import paths
from carmad.errors import CarmaError
from cli.problems import INTERRUPTED, refusal, report
from cli.verbs import ITSELF, TYPER, Group, elsewhere, find, find_word

PIPE_CLOSED = 141  # what a shell reports for a program killed by SIGPIPE
OURS = ("carma", "main.py")  # `python -m cli.main`


def main() -> None:
    if sys.stdout is None:  # closed: `carma estimate … >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - light; open until it ends
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib is slow to import
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
        return report(error, as_json="--json" in args)
    except SystemExit as exit:  # argparse, after --help or a wrong option
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `carma queue | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        return report(refusal(error), as_json=False)
    return code


def dispatch(args: list[str]) -> int:
    color, words = _color(args)
    if color:
        from cli import output

        output.choose_color(color)
    words = _ask_for_help(words)
    verb, left = find(words[0]) if words and not words[0].startswith("-") else None, words[1:]
    if isinstance(verb, Group):
        verb, left = verb.find(" ".join(words[1:2])), words[2:]
    if verb is None:
        from cli.help import run_without_verb

        return run_without_verb(words)
    if not paths.is_served():
        verb = elsewhere(verb)
    if verb.reads == TYPER:
        from cli.app import run_typer

        return run_typer(verb, left)
    return int(verb.function()(left if verb.reads == ITSELF else verb.read(left)))


def _ask_for_help(words: list[str]) -> list[str]:
    """`help VERB` and `daemon help VERB` as `VERB --help`."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    if words[1:2] == ["help"] and isinstance(find(words[0]), Group):
        return [words[0], *words[2:], "--help"]
    return words


def _color(args: list[str]) -> tuple[str, list[str]]:
    """What `--color` in front of the verb says, and the words from the verb on."""
    first = args[0] if args else ""
    if first == "--color":
        return args[1] if len(args) > 1 else "", args[2:]
    if first.startswith("--color="):
        return first.removeprefix("--color="), args[1:]
    return "", args


if __name__ == "__main__":
    main()
