"""Verbs that typer reads from the annotations of their functions. It takes longer to import than
most verbs to run, so it is for those that people do not type all day. Their help and their errors
look as those of the others.
"""

from __future__ import annotations

from typing import Any

import typer

from cli.parser import Parser
from cli.problems import Usage
from cli.verbs import Verb

# typer exports only this subclass, and its base moves between releases.
UsageError: Any = typer.BadParameter.__bases__[0]
HELP = ("-h", "--help")


def run_typer(verb: Verb, words: list[str]) -> int:
    """Raises CarmaError."""
    parser = parser_of(verb)
    if any(word in HELP for word in words):
        parser.print_help()
        return 0
    try:
        return _command(verb)(words, prog_name=parser.prog, standalone_mode=False) or 0
    except UsageError as error:
        if option := getattr(error, "option_name", ""):
            parser.error(f"unrecognized arguments: {option}")
        what = error.format_message().rstrip(".")
        raise Usage(what[0].lower() + what[1:], f"see `{parser.prog} --help`") from None


def parser_of(verb: Verb) -> Parser:
    """What its help, the reference and completions are made of."""
    parser = Parser(
        f"carma {verb.name}", description=verb.about(), allow_abbrev=False, add_help=False
    )
    for each in _command(verb).params:
        about: dict[str, Any] = {"help": (each.help or "").replace("%", "%%")}
        if each.param_type_name == "argument":
            nargs = None if each.required else "?"
            parser.add_argument(each.name, nargs=nargs, metavar=each.metavar, **about)
        elif each.is_flag:
            parser.add_argument(*each.opts, action="store_true", **about)
        else:
            parser.add_argument(*each.opts, metavar=each.metavar or "PATH", **about)
    parser.add_argument(*HELP, action="help", help="show this help")
    return parser


def _command(verb: Verb) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(verb.name, add_help_option=False)(verb.function())
    return typer.main.get_command(app)
