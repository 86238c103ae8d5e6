"""Every verb but `submit` as a typer command: this table is what `carma --help` prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from carmad.errors import CarmaError
from cli import output
from cli.commands import (
    accounts,
    completion,
    diagnosis,
    estimate,
    estimators,
    gpumemnet,
    gpus,
    logs,
    models,
    passing,
    queue,
    server,
    simulate,
    steer,
    watch,
)
from cli.problems import Usage, report

# typer exports only this subclass, and its base moves between releases.
UsageError: Any = typer.BadParameter.__bases__[0]

JOBS, WATCH, SERVER, MORE = "Jobs", "Monitoring", "Administration", "More"

# verb, aliases, function, section
VERBS: tuple[tuple[str, tuple[str, ...], Callable[..., Any], str], ...] = (
    ("submit", ("sub",), passing.submit, JOBS),
    ("queue", ("ps",), queue.queue, JOBS),
    ("show", (), queue.show, JOBS),
    ("why", ("explain",), queue.why, JOBS),
    ("logs", (), logs.logs, JOBS),
    ("wait", (), steer.wait, JOBS),
    ("cancel", ("kill",), steer.cancel, JOBS),
    ("hold", (), steer.hold, JOBS),
    ("release", (), steer.release, JOBS),
    ("requeue", (), steer.requeue, JOBS),
    ("report-step", ("report",), steer.report_step, JOBS),
    ("estimate", (), estimate.estimate, JOBS),
    ("status", (), watch.status, WATCH),
    ("top", (), watch.top, WATCH),
    ("gpus", (), gpus.gpus, WATCH),
    ("history", (), accounts.history, WATCH),
    ("stats", (), accounts.stats, WATCH),
    ("estimators", (), estimators.estimators, WATCH),
    ("models", (), models.models, WATCH),
    ("drain", (), gpus.drain, SERVER),
    ("resume", (), gpus.resume, SERVER),
    ("doctor", (), diagnosis.doctor, SERVER),
    ("simulate", (), simulate.simulate, MORE),
    ("demo", (), passing.demo, MORE),
    ("completion", (), completion.completion, MORE),
)
PASSED_ON = frozenset({"submit", "estimate", "demo"})  # they read their own options
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def build() -> typer.Typer:
    app = typer.Typer(
        name="carma",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(common)
    for verb, aliases, function, section in VERBS:
        settings: dict[str, Any] = PASS_ON if verb in PASSED_ON else {}
        app.command(verb, rich_help_panel=section, context_settings=settings)(function)
        for alias in aliases:
            app.command(alias, hidden=True, context_settings=settings)(function)
    app.add_typer(server.daemon, name="daemon", rich_help_panel=SERVER)
    app.add_typer(diagnosis.config, name="config", rich_help_panel=SERVER)
    app.add_typer(gpumemnet.gpumemnet, name="gpumemnet", rich_help_panel=MORE)
    return app


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

        print(f"carma {version('carma')}")
        raise typer.Exit


def run_app(args: list[str]) -> int:
    as_json = "--json" in args
    try:
        return build()(args, prog_name="carma", standalone_mode=False) or 0
    except CarmaError as error:
        return report(error, as_json)
    except UsageError as error:
        message = error.format_message()
        if not message:  # `carma` alone: typer has printed the help
            return Usage.exit_code
        return report(_usage(message, error.ctx.command_path if error.ctx else "carma"), as_json)


def _usage(message: str, command: str) -> Usage:
    """typer's message in our style."""
    what, _, guess = message.partition(" Did you mean ")
    hint = f"did you mean {guess}" if guess else f"see `{command} --help`"
    return Usage(what[0].lower() + what[1:].rstrip("."), hint)
