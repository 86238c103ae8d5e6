"""`carma` without a verb: its help and version; and verbs that typer reads, as they need not start
at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from carmad import DISTRIBUTION
from cli import output
from cli.parser import Parser
from cli.problems import Usage
from cli.verbs import BY_NAME, JOBS, MORE, SERVER, VERBS, WATCH, Verb

Json = Annotated[bool, typer.Option("--json", help="Print the daemon's answer as JSON.")]

# typer exports only this subclass, and its base moves between releases.
UsageError: Any = typer.BadParameter.__bases__[0]


def run_without_verb(words: list[str]) -> int:
    """Raises Usage for a verb that does not exist."""
    parser = build_parser()
    if words and not words[0].startswith("-"):
        from difflib import get_close_matches

        near = [f"'{name}'" for name in get_close_matches(words[0], BY_NAME)]
        hint = f"did you mean {', '.join(near)}?" if near else "see `carma --help`"
        raise Usage(f"no such command '{words[0]}'", hint)
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version

        print(f"carma {version(DISTRIBUTION)}")
        return 0
    parser.print_help()
    return Usage.exit_code


def build_parser() -> Parser:
    """It reads only options: verbs are arguments so that its help lists them."""
    parser = Parser(
        "carma",
        usage="carma [--color WHEN] VERB [WORD…]\n       carma help [VERB]",
        description="CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and"
        " do not slow each other down too much.",
        allow_abbrev=False,
        add_help=False,
    )
    for section in (JOBS, WATCH, SERVER, MORE):
        group = parser.add_argument_group(section)
        for verb in VERBS:
            if verb.section == section:
                group.add_argument(verb.name, nargs="?", help=_summary(verb))
    own = parser.add_argument_group("options")
    own.add_argument("-h", "--help", action="help", help="show this help; also after a verb")
    own.add_argument("--version", action="store_true", help="print the version and exit")
    colors = [color.value for color in output.Color]
    own.add_argument(
        "--color", choices=colors, metavar="WHEN", help=f"when to colour: {', '.join(colors)}"
    )
    return parser


def _summary(verb: Verb) -> str:
    function = verb.function()
    about = function.info.help if isinstance(function, typer.Typer) else function.__doc__
    first = " ".join(str(about).split("\n\n")[0].split())
    return first.replace("%", "%%")


def group(about: str) -> typer.Typer:
    """For verbs below a verb. Its help looks as argparse's."""
    return typer.Typer(
        no_args_is_help=True,
        help=about,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def build_command(verb: Verb) -> Any:
    """A verb that typer reads."""
    app = verb.function()
    if not isinstance(app, typer.Typer):
        alone = group("")
        alone.command(verb.name)(app)
        app = alone
    return typer.main.get_command(app)


def run_typer(verb: Verb, words: list[str]) -> int:
    """Raises CarmaError."""
    name = f"carma {verb.name}"
    try:
        return build_command(verb)(words, prog_name=name, standalone_mode=False) or 0
    except UsageError as error:
        message = error.format_message()
        if message.startswith("Usage: "):  # a group without a verb: it is the help
            print(message)
            return Usage.exit_code
        raise _usage(message, error.ctx.command_path if error.ctx else name) from None


def _usage(message: str, command: str) -> Usage:
    """typer's message in our style."""
    what, _, guess = message.partition(" Did you mean ")
    hint = f"did you mean {guess}" if guess else f"see `{command} --help`"
    return Usage(what[0].lower() + what[1:].rstrip("."), hint)
