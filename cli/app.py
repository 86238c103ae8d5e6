"""The typer app: what `carma --help` prints, and verbs that need not start at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from carmad import DISTRIBUTION
from cli import output
from cli.problems import Usage
from cli.verbs import TYPER, VERBS, Verb

# typer exports only this subclass, and its base moves between releases.
UsageError: Any = typer.BadParameter.__bases__[0]


def build() -> typer.Typer:
    app = typer.Typer(
        name="carma",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(common)
    for verb in VERBS:
        function = verb.function()
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=verb.name, rich_help_panel=verb.section)
            continue
        shown = function if verb.reads == TYPER else _named(verb)
        app.command(verb.name, rich_help_panel=verb.section)(shown)
        for alias in verb.aliases:
            app.command(alias, hidden=True)(shown)
    return app


def _named(verb: Verb) -> Callable[[], None]:
    """A verb that typer only lists: `cli.main` never lets it read its words."""

    def listed() -> None:
        raise AssertionError(verb.name)

    listed.__doc__ = verb.function().__doc__
    return listed


def common(
    color: Annotated[
        output.Color, typer.Option(help="When to colour the output.")
    ] = output.Color.AUTO,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _version(asked),
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and do not slow
    each other down too much."""
    output.choose_color(color)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"carma {version(DISTRIBUTION)}")
        raise typer.Exit


def run_app(args: list[str]) -> int:
    """Raises CarmaError."""
    try:
        return build()(args, prog_name="carma", standalone_mode=False) or 0
    except UsageError as error:
        message = error.format_message()
        if not message:  # `carma` alone: typer has printed the help
            return Usage.exit_code
        raise _usage(message, error.ctx.command_path if error.ctx else "carma") from None


def _usage(message: str, command: str) -> Usage:
    """typer's message in our style."""
    what, _, guess = message.partition(" Did you mean ")
    hint = f"did you mean {guess}" if guess else f"see `{command} --help`"
    return Usage(what[0].lower() + what[1:].rstrip("."), hint)
