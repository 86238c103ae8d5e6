"""Output: data to stdout, notes to stderr, colour only if wanted."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

PIPE_WIDTH = 100_000  # no output is cut if there is no terminal


class Color(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_chosen = Color.AUTO


def choose_color(color: Color) -> None:
    global _chosen
    _chosen = color


def wants_color(chosen: Color, environ: Mapping[str, str], tty: bool) -> bool:
    """Decided by the flag, NO_COLOR, FORCE_COLOR, or whether it is a terminal, in this order."""
    if chosen is not Color.AUTO:
        return chosen is Color.ALWAYS
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return tty and environ.get("TERM") != "dumb"


def check_writable(file: Path) -> None:
    """Call this before anything slow. Raises Problem."""
    from cli.problems import Problem

    if not file.parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        why = "it is a folder" if file.is_dir() else "no permission"
        raise Problem(f"cannot write {file}: {why}")


def console() -> Console:
    from rich.console import Console

    tty = sys.stdout.isatty()
    color = wants_color(_chosen, os.environ, tty)
    return Console(
        force_terminal=tty or color,
        color_system=("auto" if tty else "standard") if color else None,
        no_color=not color,
        width=None if tty else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show(renderable: RenderableType) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    screen = console()
    with screen.capture() as captured:
        screen.print(renderable)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2))


def note(text: str) -> None:
    print(f"carma: {text}", file=sys.stderr)
