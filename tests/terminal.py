"""What is shown on a terminal, as text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def plain(renderable: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
