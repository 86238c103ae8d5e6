"""Verbs that typer reads, as they need not start at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.problems import Usage
from cli.verbs import Verb

Json = Annotated[bool, typer.Option("--json", help="Print the daemon's answer as JSON.")]

# typer exports only this subclass, and its base moves between releases.
UsageError: Any = typer.BadParameter.__bases__[0]


def group() -> typer.Typer:
    """For verbs below a verb. Its help looks as argparse's."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def build_command(verb: Verb) -> Any:
    """A verb that typer reads."""
    app = verb.function()
    if isinstance(app, typer.Typer):
        app.info.help = verb.summary()
    else:
        alone = group()
        alone.command(verb.name, help=verb.about())(app)
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
