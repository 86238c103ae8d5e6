"""Output: data to stdout, notes to stderr, colour only if wanted."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from cli.problems import note as note
from cli.text import Table, draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rich.console import Console

    from cli.text import Block

PIPE_WIDTH = 100_000  # no output is cut if there is no terminal
MOST_DRAWN = 300  # rows: more are printed plainly, as rich takes 1 ms for each


def check_writable(file: Path) -> None:
    """Call this before anything slow. Raises Problem."""
    from cli.problems import Problem

    if not file.parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        why = "it is a folder" if file.is_dir() else "no permission"
        raise Problem(f"cannot write {file}: {why}")


def uses_color() -> bool:
    """NO_COLOR and FORCE_COLOR decide, as with rich, or else whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    is_able = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or is_able


def write(texts: Iterable[bytes]) -> None:
    """Write bytes as they come. What cannot be written is not raised in their generator, which
    would blame what it reads."""
    for text in texts:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def is_ascii() -> bool:
    """Whether the terminal shows nothing but ASCII."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def why_no_screen() -> str:
    """Why this terminal can show none that changes; "" if it can."""
    if not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):
        return "there is no terminal"
    if os.environ.get("TERM", "dumb") == "dumb":
        return "the terminal is dumb (TERM)"
    return "the terminal shows nothing but ASCII" if is_ascii() else ""


def console() -> Console:
    from rich.console import Console

    tty = sys.stdout.isatty()
    color = uses_color()
    return Console(
        force_terminal=tty or color,
        color_system=("auto" if tty else "standard") if color else None,
        no_color=not color,
        width=None if tty else PIPE_WIDTH,  # a terminal's may change
        highlight=False,
        markup=False,
        emoji=False,
    )


def show(picture: Iterable[Block]) -> None:
    """Without blanks at the ends of lines."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    screen, is_plain = None, not (sys.stdout.isatty() or uses_color())
    for block in picture:
        if isinstance(block, Table) and (is_plain or len(block.rows) > MOST_DRAWN):
            lines = list(block.plain())
        elif isinstance(block, str) and is_plain:
            lines = block.split("\n")
        else:
            screen = screen or console()
            with screen.capture() as captured:
                screen.print(draw([block]))
            lines = captured.get().splitlines()
        for line in lines:
            print(line.rstrip())


def print_json(answer: Mapping[str, object]) -> None:
    """A field on each line, and a line for each item of a list: to read, and for grep. Indenting
    all of it would take longer than everything else."""
    import json

    fields = []
    for name, value in answer.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [json.dumps(item, separators=(",", ":")) for item in value]
            text = "[\n" + ",\n".join(rows) + "\n]"
        else:
            text = json.dumps(value)
        fields.append(f"{json.dumps(name)}: {text}")
    print("{\n" + ",\n".join(fields) + "\n}")
