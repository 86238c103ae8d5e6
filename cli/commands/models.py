"""The models of policies and predictors: `models`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from cli import client, output
from cli.commands.options import Json
from cli.problems import Usage


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Draw this one: its tree, or its curves.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Have models trained now (administrators).")
    ] = False,
    json: Json = False,
) -> None:
    """List the models that policies and predictors use, and how good they are.

    Some came with CARMA; others are trained from this server's own past jobs, again and again.
    ERROR is measured on jobs that took no part in the training.
    """
    if train and name:
        raise Usage("--train takes no name: it trains all models", "leave the name out")
    if train:
        answer = client.post("/v1/models/train", None)
    else:
        answer = client.get("/v1/models" if name is None else f"/v1/models/{quote(name, safe='')}")
    if json:
        output.print_json(answer)
        return
    if train:
        print("training has started and takes minutes: see `carma models`")
        return
    from cli import model_view

    output.show(model_view.models(answer) if name is None else model_view.model(answer))
