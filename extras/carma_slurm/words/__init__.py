"""One of Slurm's commands from its name to its exit code: how its words are read, and its errors in
the form that Slurm's have. Imports stay light."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from carma_slurm import VERSION
from carmad.errors import CarmaError
from carmad.readable import clean_lines
from cli.problems import INTERRUPTED, Unreachable, Usage, refusal
from cli.reader import Parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_WAIT_S = 86_400
FAILED = 1  # of all that went wrong, as Slurm's commands exit
DOWN = "Unable to contact slurm controller (connect failure)"  # tools look for it and try again


def run(word: str, args: list[str]) -> int:
    """`word`: one of `WORDS`."""
    if args[:1] in (["--version"], ["-V"]):
        print(VERSION)
        return 0
    module = __import__(f"carma_slurm.words.{word}", fromlist=(word,))
    try:
        code: int = getattr(module, word)(args)
        sys.stdout.flush()
    except CarmaError as error:
        complain(word, error)
        return FAILED
    except SystemExit as exit:  # argparse, after --help
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `squeue | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        complain(word, refusal(error))
        return FAILED
    return code


def complain(word: str, error: CarmaError) -> None:
    if isinstance(error, Unreachable):
        say(word, f"error: {DOWN}")
    say(word, f"error: {error.message}")
    if error.hint:
        say(word, error.hint)


def say(word: str, text: str) -> None:
    """On standard error."""
    print(f"{word}: {clean_lines(text)}", file=sys.stderr, flush=True)


def ignore(word: str, options: list[str]) -> None:
    """Name options that mean nothing on one server."""
    if options:
        say(word, f"ignored: {' '.join(dict.fromkeys(options))}")


def read(word: str, about: str, declare: Callable[[Parser], object], args: list[str]) -> Any:
    """The options that `declare` adds. They may stand between the words."""
    made = parser(word, about, declare)
    options, others = made.sort_out(args)
    return made.parse_args([*options, *(["--"] if others else []), *others])


def parser(word: str, about: str, declare: Callable[[Parser], object]) -> Parser:
    made = Parser(word, description=about)
    declare(made)
    add = made.add_argument_group("help options").add_argument
    add("--help", "--usage", action="help", help="show this help")
    add("-V", "--version", action="version", version=VERSION, help="show the version")
    return made


def today() -> str:
    """The line over a listing that is long or shown again and again."""
    from time import strftime

    return strftime("%a %b %d %H:%M:%S %Y")


def repeat(word: str, show: Callable[[], int], options: Any) -> int:
    """Show it once or, with --iterate, again and again until it is interrupted. Raises Usage."""
    every_s: str | None = options.iterate
    if every_s is None or options.json:
        return show()
    if not every_s.isdecimal() or not 0 < int(every_s) <= MAX_WAIT_S:
        raise Usage(f"invalid time interval: {every_s}", "give whole seconds, such as -i 5")
    from time import sleep

    while True:
        if not options.noheader:
            print(today())
        try:
            show()
        except Unreachable as error:  # it may come back
            complain(word, error)
        print(flush=True)
        sleep(int(every_s))


def split(texts: str | list[str] | None) -> list[str]:
    """The words of an option that takes a list, or was given several times. A comma in brackets
    does not separate: 1_[0,2]."""
    listed = [texts] if isinstance(texts, str) else texts or []
    found, word, depth = [], "", 0
    for letter in f"{','.join(listed)},":
        depth += (letter == "[") - (letter == "]")
        if letter != "," or depth > 0:
            word += letter
            continue
        found += [word.strip()] if word.strip() else []
        word = ""
    return found
