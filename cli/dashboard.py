"""Overviews of GPUs: `carma status`, `carma top` and `carma gpus`. Pure, like `cli.render`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from carmad.readable import clean
from cli import render
from cli.format import NOTHING, bar, fraction, memory, number, span

if TYPE_CHECKING:
    from carmad.api.responses.gpus import GpuOut, GpusOut, RiskOut
    from carmad.api.responses.server import StatusOut

BAR_WIDTH = 10
ROOM_FOR_BARS = 110
SETTLED = frozenset({"CD", "F", "CA", "TO", "OOM"})
GPU_STYLE = {"ok": "green", "settling": "cyan", "drained": "dim", "faulty": "bold red"}


def status(answer: StatusOut, width: int, bars: bool, ascii_only: bool = False) -> RenderableType:
    live = [job for job in answer["jobs"] if job["code"] not in SETTLED]
    mine = [job for job in answer["jobs"] if job["code"] in SETTLED]
    parts: list[RenderableType] = [
        headline(answer),
        Text(),
        gpus(answer["gpus"], bars and width >= ROOM_FOR_BARS, ascii_only),
    ]
    if not live:
        parts.append(Text("\nno jobs: submit one with `carma submit -- COMMAND`"))
    for title, jobs in (("jobs", live), ("ended in the last minutes", mine)):
        if jobs:
            parts += [Text(f"\n{title}", style="bold"), render.JobTable(jobs)]
            if jobs is live and (more := answer.get("more")):
                parts.append(Text(f"and {more} more that wait: carma queue", style="dim"))
    return Group(*parts)


def headline(answer: StatusOut) -> Text:
    server, counts = answer["server"], answer["counts"]
    troubles = server.get("troubles", ())  # an older carmad does not send them
    facts = [
        f"policy {server['policy']}",
        f"{len(answer['gpus'])} GPUs ({server['source']})",
        f"{server['cpus_free']} of {server['cpus']} CPUs free" if "cpus_free" in server else "",
        "MPS" if server["mps"] else "",
        f"up {span(server['uptime_s'])}",
        f"{counts['running']} running, {counts['queued']} waiting",
        f"{counts['recovering']} recovering" if counts["recovering"] else "",
    ]
    alarms = [(f" · {clean(words)}: see carma doctor", "bold red") for words in troubles]
    return Text.assemble(
        (f"CARMA {server['version']}", "bold"),
        *alarms,
        *(f" · {fact}" for fact in facts if fact),
    )


def gpus(cards: Sequence[GpuOut], bars: bool, ascii_only: bool = False) -> Table:
    made = render.table("GPU> NAME MEMORY SMACT> SMOCC> DRAMA> POWER> TEMP> STATE WHO")
    for column in (made.columns[2], made.columns[8]):
        column.no_wrap = True  # on a narrow terminal, NAME and WHO shrink
    made.columns[-1].overflow = "fold"
    for gpu in cards:
        made.add_row(
            str(gpu["index"]),
            render.cell(_name(gpu)),
            _memory(gpu, bars, ascii_only),
            _level(gpu["sm_active"], gpu["risk"]["risky"]),
            fraction(gpu["sm_occupancy"]),
            fraction(gpu["dram_active"]),
            number(gpu["power_w"], "W"),
            number(gpu["temperature_c"], "C"),
            Text(gpu["state"], style=GPU_STYLE.get(gpu["state"], "yellow")),
            _who(gpu),
        )
    return made


def _name(gpu: GpuOut) -> str:
    """With its island, if there are several."""
    island = f" @{clean(gpu['island'])}" if gpu["island"] else ""
    return clean(gpu["name"]).removeprefix("NVIDIA ") + island


def _memory(gpu: GpuOut, bars: bool, ascii_only: bool) -> Text:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    share = used / total if used is not None and total else None
    style = "" if share is None else "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    text = f"{memory(used)}/{memory(total)}"
    if bars:
        return Text.assemble((bar(share, BAR_WIDTH, ascii_only), style), f" {text}")
    return Text(text, style=style, no_wrap=True)


def _level(value: float | None, risky: bool) -> Text:
    return Text(fraction(value), style="red" if risky else "")


def _who(gpu: GpuOut) -> Text:
    """Jobs as user:id(memory), and external processes, in the style of gpustat."""
    jobs = [
        f"{clean(job['user'])}:{job['label']}({memory(job['memory_mib'])})" for job in gpu["jobs"]
    ]
    others = [
        f"{clean(one['user'])}:pid {one['pid']}({memory(one['memory_mib'])})"
        for one in gpu["outsiders"]
    ]
    return Text.assemble(" ".join(jobs), (" " * bool(jobs and others) + " ".join(others), "dim"))


def gpu_report(answer: GpusOut) -> RenderableType:
    """Every GPU with its risk, and the limits below. UUIDs: --json."""
    limits = answer["thresholds"]
    made = render.table("GPU> NAME USED> TOTAL> PROMISABLE> SMACT> SMOCC> DRAMA> RISK JOBS> STATE")
    for gpu in answer["gpus"]:
        risk = gpu["risk"]
        made.add_row(
            str(gpu["index"]),
            render.cell(_name(gpu)),
            memory(gpu["memory_used_mib"]),
            memory(gpu["memory_mib"]),
            memory(gpu["admissible_free_mib"]),
            *(fraction(risk[key]) for key in ("sm_active", "sm_occupancy", "dram_active")),
            _risk(risk),
            str(len(gpu["jobs"])),
            Text(_state(gpu), style=GPU_STYLE.get(gpu["state"], "yellow")),
        )
    parts: list[RenderableType] = [made]
    notes = [clean(line) for line in answer["source"].get("notes", ())]
    words = ", ".join(f"{name} {value}" for name, value in _flat(limits))
    parts += [Text(f"\nlimits: {words}"), *(Text(f"note: {line}") for line in notes)]
    return Group(*parts)


def _risk(risk: RiskOut) -> Text:
    if not risk["samples"]:
        return Text(NOTHING)
    return Text("high", style="red") if risk["risky"] else Text("low", style="green")


def _state(gpu: GpuOut) -> str:
    return gpu["state"] + (f": {clean(gpu['state_detail'])}" if gpu["state_detail"] else "")


def _flat(tree: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Settings by dotted name, such as risk.sm_active, as in `carma config show`."""
    found: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found
