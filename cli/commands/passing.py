"""Verbs that read their own words: typer hands them on untouched."""

from __future__ import annotations

import typer

from cli import output

ESTIMATE_S = 600.0  # estimators may build the model to look at it


def submit(context: typer.Context) -> None:
    """Queue a command or a job script; see `carma submit --help`."""
    from cli.commands.submit import submit as submit_words

    raise typer.Exit(submit_words(context.args))


def estimate(context: typer.Context) -> None:
    """Predict the memory a command needs; takes what `carma submit` takes."""
    from cli import client, render
    from cli.commands.submit import read

    options, body = read(context.args)
    answer = client.post("/v1/estimate", body, within_s=ESTIMATE_S)
    if options.json:
        output.print_json(answer)
    else:
        output.show(render.estimates(answer))


def demo(context: typer.Context) -> None:
    """See CARMA at work on emulated GPUs; logs and databases stay in your state directory."""
    from cli.commands.demo import demo as play

    raise typer.Exit(play(context.args))
