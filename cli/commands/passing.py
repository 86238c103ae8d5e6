"""Verbs that parse their own arguments: typer passes them on untouched."""

from __future__ import annotations

import typer


def submit(context: typer.Context) -> None:
    """Submit a command or a job script; see `carma submit --help`."""
    from cli.commands.submit import submit as submit_words

    raise typer.Exit(submit_words(context.args))


def demo(context: typer.Context) -> None:
    """Run a demonstration on emulated GPUs. Logs and databases stay in your state directory."""
    from cli.commands.demo import demo as play

    raise typer.Exit(play(context.args))
