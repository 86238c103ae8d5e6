"""The models of policies and predictors: `models`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from cli import client, output
from cli.app import Json
from cli.problems import Usage


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Draw this model: its tree, or its curves.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the models now (administrators).")
    ] = False,
    json: Json = False,
) -> None:
    """List the models that policies and predictors use, and their accuracy.

    Some come with CARMA; others are trained, and regularly retrained, on this server's past jobs.
    ERROR is measured on jobs left out of the training.
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
