"""The tables of `docs/compared.md`: what was measured, marked †, and what the programs' documentation says."""

# ruff: noqa: E501 - a row of the table is a line

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import ROOT
from lab import RESULTS
from lab.peers import documented
from lab.peers.measures import short

PAGE = ROOT / "docs/compared.md"
BEGIN, END = "<!-- python -m lab.peers table -->", "<!-- end -->"
BLOCK = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)
LINKS = {
    "CARMA": "",
    "Slurm": "https://slurm.schedmd.com/",
    "gflow": "https://github.com/AndPuQing/gflow",
    "task-spooler": "https://github.com/justanhduc/task-spooler",
}
LEGEND = """\
Y: yes, P: partly, N: no. **†: measured side by side by `python -m lab.peers`** ([results](../lab/results/peers.md); tuned: as its
documentation advises); × py: so many times `python -c pass`. Slurm is Debian 12's. The rest is from documentation of November
2026, task-spooler's from that of its GPU fork; what CARMA's column says is tested, on fake GPUs."""

SPEED = {  # the beginnings of the lines that a row shows
    "A Python job has started; a shell job (× py)": ("a Python job", "a job of /bin/sh"),
    "300 short jobs at once, per second; CPU of each, ms": ("300 jobs", "processor time of one"),
    "To list 1,000 jobs; 10,000 (× py)": ("queue, 1,000 jobs", "queue, 10,000 jobs"),
    "The daemon has started (× py); its memory, MB": ("daemon: start", "daemon: memory, idle"),
}

# A {task} is Y† or N†, as it ended; {task:words} is what came of it.
FACTS = """
Several jobs on a GPU, by measured memory and load | Y | N: MPS shares and shards are counted | N: declared memory is summed | P: by the free share of memory
Out-of-memory crashes detected and retried | Y | N: a CUDA OOM is a failure | N: retries any failure, on request | N
Accounts for processes outside the queue | Y | N | P | P
Says why a job waits | Y: per GPU, with numbers | P†: `{why:words}` | P†: `{why:words}` | N†
Refuses a job wider than the server; passes the shell's environment on | {wide}; {environment} | {wide}; {environment} | {wide}; {environment} | {wide}; {environment}
Runs jobs as the submitting user | {user} | {user} | {user}: as the daemon's | P†: a server per user
Jobs survive kill -9 of the daemon: 8 of 25 s | {killed}: {killed:words} | {killed}: {killed:words}; of 20 of 3 s, {killed short:words}, as it saves its state every five seconds | P†: {killed:words}; with its process executor only | P†: {killed:words}
MPS; MIG | Y; P: uses instances that exist | Y; P: static | N; N | N; N
Arrays, dependencies, begin times, hold | Y: also sweeps | Y†: more kinds | P†: also sweeps; 9,000 tasks are too many | P†: dependencies
Recurring jobs; GPUs booked by users | P: from the system's cron, one at a time; Y: within limits | Y: `scrontab`; N: operators reserve | N; N | N; N
A kind of GPU is chosen, or refused with what there is; past jobs searched | Y; Y | Y: `--gres=gpu:KIND`; Y: `sacct`, needs slurmdbd | N; P: `gqueue --completed` | N; N
A command at the terminal; in a running job | {here}; {inside} | {here}; {inside} | {here}; with tmux, its terminal† | {here}; {inside}
Several servers; AMD GPUs | **N; N** | Y; Y | N; N | N; N
Fair share; quotas, changed live | Y; {quota} | Y; Y: both need slurmdbd, a database server† | Y; Y†: by anybody | N; {quota}
Reservations; preemption | {reserved}: of GPUs; P: off by default | {reserved}; Y | P†: from a full or half hour on; N | {reserved}; N
Jobs behind a wide one use idle GPUs; without time limits | {behind}; {behind untimed} where jobs may be suspended | P†: {behind:words}, with or without | {behind}; – | {behind}; {behind untimed}
Host memory and CPUs; a limit of GPU memory enforced | Y; P: under MPS | Y; N | P: memory; N | N; N
Mail and webhooks; web page | Y; Y | P: mail; P: third party | Y; P†: `/ui` shows jobs and logs, no login ([the walk](../lab/results/web_walk.md)) | P: mail; N
Prometheus; a week's report | Y; Y | Y: from 25.11; P: `sreport`, needs slurmdbd | P†: not in PyPI's build; P: `gstats` | N; N
Verified on real hardware; in use | **P: [on one H100](hardware.md); new** | by its users; for decades | by its users | by its users; since 2007
"""


class Outcome:
    """Of a task on a system."""

    def __init__(self, cell: str) -> None:
        self._cell = cell

    def __format__(self, form: str) -> str:
        said, _, words = self._cell.partition(": ")
        return words or said if form == "words" else {"yes": "Y†", "no": "N†"}.get(said, "–")


def write() -> None:
    found = json.loads((RESULTS / "peers.json").read_text())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda _: draw(found), page), encoding="utf-8")


def draw(found: Mapping[str, Any]) -> str:
    """The block, with its markers."""
    titles: Mapping[str, str] = found["titles"]
    heads = []
    for name, link in LINKS.items():
        title = titles.get(name, name)
        heads.append(title.replace(name, f"[{name}]({link})") if link else title)
    rows = [["", *heads], ["---"] * (len(heads) + 1)]
    for what, begins in SPEED.items():
        lines = [
            line for each in begins for line in found["lines"] if line["what"].startswith(each)
        ]
        rows.append([what, *(_draw_speed(lines, name) for name in LINKS)])
    for line in FACTS.strip().splitlines():
        what, *cells = line.split(" | ")
        named = zip(LINKS, cells, strict=True)
        rows.append([what, *(cell.format_map(_outcomes(found, name)) for name, cell in named)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"{BEGIN}\n{LEGEND}\n\n{table}\n\n{documented.draw()}\n{END}"


def _draw_speed(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    variants = {
        system: "; ".join(_draw_value(line, system) for line in lines)
        for line in lines
        for system in line["values"]
        if system.partition(",")[0] == name
    }
    tuned = "".join(f" (tuned: {cell})" for system, cell in variants.items() if system != name)
    return f"{variants[name]}†{tuned}" if name in variants else "–"


def _draw_value(line: Mapping[str, Any], system: str) -> str:
    if system not in line["values"]:
        return "–"
    return short(line["values"][system] / (line["py_ms"] or 1.0))


def _outcomes(found: Mapping[str, Any], name: str) -> dict[str, Outcome]:
    """By the task, of the variant that was tried."""
    return {
        task: Outcome(next((cells[each] for each in cells if each.partition(",")[0] == name), ""))
        for task, cells in found["tasks"].items()
    }
