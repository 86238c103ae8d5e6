"""What is shown on a terminal, as text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from cli.table import layout, painted

if TYPE_CHECKING:
    from cli.table import Block


def plain(picture: Iterable[Block], width: int = 200) -> str:
    return "\n".join(painted(line, color=False) for line in layout(picture, width))


def plain_rich(renderable: RenderableType, width: int = 200) -> str:
    """For what is drawn with rich: estimates, and the tables of simulations."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
