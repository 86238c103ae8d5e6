"""Options that several verbs of typer's share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the daemon's answer as JSON.")]
