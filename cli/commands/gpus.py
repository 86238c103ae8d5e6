"""GPUs, and whether they take jobs: `gpus`, `drain`, `resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import client, output
from cli.commands.annotations import Json

Gpus = Annotated[list[str], typer.Argument(metavar="GPU…", help="GPU indices or UUIDs, or all.")]


def gpus(json: Json = False) -> None:
    """Show each GPU's collocation risk, and the limits that apply to it."""
    answer = client.get("/v1/gpus")
    if json:
        output.print_json(answer)
        return
    from cli import dashboard

    output.show(dashboard.gpu_report(answer))


def drain(
    gpus: Gpus,
    reason: Annotated[
        str, typer.Option("--reason", "-r", help="Reason shown to users.")
    ] = "maintenance",
    json: Json = False,
) -> None:
    """Start no more jobs on these GPUs; running jobs continue. For administrators."""
    for gpu in gpus:
        _tell(client.post(f"/v1/gpus/{gpu}/drain", {"reason": reason}), json)


def resume(gpus: Gpus, json: Json = False) -> None:
    """Start jobs on drained GPUs again. For administrators."""
    for gpu in gpus:
        _tell(client.post(f"/v1/gpus/{gpu}/resume", {}), json)


def _tell(answer: dict[str, list[dict[str, object]]], as_json: bool) -> None:
    if as_json:
        output.print_json(answer)
        return
    for gpu in answer["gpus"]:
        print(f"GPU {gpu['index']}: {'drained' if gpu['drained'] else 'takes jobs'}")
