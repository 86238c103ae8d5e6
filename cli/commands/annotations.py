"""Options that several verbs of typer's share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the daemon's answer as JSON.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")]
Mine = Annotated[bool, typer.Option("--me", help="Only your own jobs.")]
States = Annotated[
    str | None,
    typer.Option(
        "--states", "-t", help="Only jobs in these states: R,PD or running,queued; or all."
    ),
]
Label = Annotated[str, typer.Argument(metavar="JOB", help="A job id, such as 42 or 42_3, or last.")]
