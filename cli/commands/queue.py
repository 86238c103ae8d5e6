"""Looking at jobs: `queue`, `show`, `why`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import client, output
from cli.columns import COLUMNS, QUEUE, QUEUE_LONG, sorted_by, with_params
from cli.commands.annotations import Json, Label, Mine, States, User
from cli.commands.options import states_of, user_of
from cli.jobs import resolve
from cli.problems import Usage


def queue(
    user: User = None,
    me: Mine = False,
    states: States = None,
    jobs: Annotated[
        str | None, typer.Option("--jobs", "-j", help="Only these jobs: 1,3,5-8.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", "-S", help="Sort by this column; -COLUMN reverses the order."),
    ] = None,
    noheader: Annotated[
        bool, typer.Option("--noheader", "-h", help="Omit the header line.")
    ] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show more columns.")] = False,
    fields: Annotated[
        str | None,
        typer.Option("--format", "-o", help=f"Choose columns: {', '.join(COLUMNS)}."),
    ] = None,
    array: Annotated[
        bool,
        typer.Option("--array", "-r", help="List every task of an array; --json always does."),
    ] = False,
    json: Json = False,
) -> None:
    """List running and waiting jobs. Tasks that wait for the same reason share a row."""
    chosen = _fields(fields) if fields else None
    if sort:
        _fields(sort.removeprefix("-"))
    names, codes = states_of(states)
    fold = None if array or json else True
    answer = client.get("/v1/jobs", select=jobs, user=user_of(user, me), states=names, fold=fold)
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if sort:
        answer["jobs"] = sorted_by(answer["jobs"], sort)
    if json:
        output.print_json(answer)
        return
    from cli import render

    shown = chosen or with_params(QUEUE_LONG if long else QUEUE, answer["jobs"])
    output.show(render.JobTable(answer["jobs"], shown, noheader))
    if more := answer.get("more"):
        output.note(f"and {more} more: select a user with -u, or jobs with -j")


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(text.lower().split(","))
    for field in fields:
        if field not in COLUMNS:
            raise Usage(f"there is no column {field!r}", f"columns: {', '.join(COLUMNS)}")
    return fields


def show(job: Label, json: Json = False) -> None:
    """Show everything about one of your jobs."""
    answer = client.get(f"/v1/jobs/{resolve(job)}")
    if json:
        output.print_json(answer)
        return
    from cli import render

    output.show(render.show(answer))


def why(job: Label, json: Json = False) -> None:
    """Explain why a job waits: each GPU's reasons, with numbers, and what would help."""
    answer = client.get(f"/v1/jobs/{resolve(job)}/why")
    if json:
        output.print_json(answer)
        return
    from cli import render

    output.show(render.why(answer))
