"""What `carma demo` shows of one of its two replays: its GPUs by job, and its jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

COLORS = ("cyan", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
SETTLED = frozenset({"CD", "F", "CA", "TO", "OOM"})
LABEL, FIGURES = 6, 19  # columns left and right of a bar
# in Unicode, in ASCII, the style ("": the job's color)
MARKS = {
    "done": ("●", "#", "green"),
    "running": ("◐", ">", ""),
    "waiting": ("○", "o", ""),
    "OOM": ("✗", "x", "bold red"),  # and waiting to be run again
    "to come": ("·", ".", "dim"),
}


def pane(
    title: str,
    gpus: Sequence[dict[str, Any]],
    jobs: Sequence[dict[str, Any]],
    total: int,
    width: int,
    plain: bool = False,
) -> Panel:
    """`jobs`: as submitted so far, in order; `total`: with those to come. `plain`: in ASCII."""
    room = width - 4  # within the frame
    lines = [line for gpu in gpus for line in _gpu(gpu, room, plain)]
    states = [_state(job) for job in jobs] + ["to come"] * (total - len(jobs))
    dots, counts = Text("jobs  "), Text()
    for number, state in enumerate(states, start=1):
        dots.append(*_mark(state, number, plain))
    for state, (symbol, ascii_symbol, style) in MARKS.items():
        if (count := states.count(state)) and state != "to come":
            counts.append(ascii_symbol if plain else symbol, style)
            counts.append(f" {count} {state}  ")
    for line in (dots, counts):
        line.truncate(room)
    done = len(jobs) == total and all(job["code"] in SETTLED for job in jobs)
    return Panel(
        Group(*lines, dots, counts),
        title=Text(title, "bold not dim"),
        title_align="left",
        border_style="green" if done else "dim",
        box=box.ASCII if plain else box.ROUNDED,
        width=width,
    )


def _gpu(gpu: dict[str, Any], room: int, plain: bool) -> tuple[Text, Text]:
    """Its memory as a bar with a part for each job, and below it the jobs."""
    bar, names = Text(f"GPU {gpu['index']} "), Text(" " * LABEL)
    cells = room - LABEL - FIGURES
    free = cells
    for job in gpu["jobs"]:
        color = _color(job["id"])
        part = min(free, round(cells * (job["memory_mib"] or 0) / gpu["memory_mib"]))
        bar.append(("#" if plain else "█") * part, color)
        names.append("= " if plain else "■ ", color).append(f"{job['name']}  ")
        free -= part
    bar.append(("." if plain else "░") * free, "dim")
    used, all_of_it = (gpu[name] / 1024 for name in ("memory_used_mib", "memory_mib"))
    bar.append(f"{used:5.1f}/{all_of_it:.0f}G  SM {100 * (gpu['sm_active'] or 0):3.0f} %")
    names.truncate(room, overflow="ellipsis")
    return bar, names


def _state(job: dict[str, Any]) -> str:
    if job["code"] in SETTLED:
        return "done"
    if job["code"] == "PD":
        return "OOM" if job.get("failures") else "waiting"
    return "running"


def _mark(state: str, number: int, plain: bool) -> tuple[str, str]:
    symbol, ascii_symbol, style = MARKS[state]
    return ascii_symbol if plain else symbol, style or _color(number)


def _color(id: int) -> str:
    return COLORS[id % len(COLORS)]
