"""The whole server at a glance: `status`, and `top` that keeps it up to date."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli import client, output
from cli.commands.annotations import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def status(json: Json = False) -> None:
    """Show the GPUs, the jobs on them, and the queue."""
    if json:
        output.print_json(client.get("/v1/status"))
    else:
        output.show(_picture(output.console()))


def top(
    watch: Annotated[
        float, typer.Option("--watch", "-w", min=0.2, help="Refresh interval in seconds.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", "-1", help="Print once and exit.")] = False,
) -> None:
    """Show `carma status` live; q quits."""
    screen = output.console()
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        output.show(_picture(screen))
        return
    from rich.live import Live

    with _keys(), Live(_picture(screen), console=screen, screen=True, auto_refresh=False) as live:
        while not _quits(watch):
            live.update(_picture(screen), refresh=True)


def _picture(screen: Console) -> RenderableType:
    from cli import dashboard

    answer = client.get("/v1/status")
    return dashboard.status(
        answer, screen.width, bars=screen.is_terminal, ascii_only=screen.options.ascii_only
    )


@contextmanager
def _keys() -> Iterator[None]:
    """Reads keys as they are pressed, without echo."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # keeps what was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quits(within_s: float) -> bool:
    import select

    ready, _, _ = select.select([sys.stdin], [], [], within_s)
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b"")
