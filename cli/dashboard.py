"""Overviews of GPUs: `carma status`, `carma top` and `carma gpus`. Pure, like `cli.render`."""

from __future__ import annotations

from carmad.readable import clean
from cli import render
from cli.format import NOTHING, bar, fraction, memory, number, span
from cli.table import Table, columns, in_style, layout

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

    from carmad.api.gpus import GpuOut, GpusOut, RiskOut
    from carmad.api.job import JobOut
    from carmad.api.server import StatusOut
    from cli.table import Block, Line

BAR_WIDTH = 10
ROOM_FOR_BARS = 110
SETTLED = frozenset({"CD", "F", "CA", "TO", "OOM"})
MOST_ENDED = 5
LEAST_ROWS = 3  # of jobs, however low the terminal
GPU_STYLE = {"ok": "green", "settling": "cyan", "drained": "dim", "faulty": "bold red"}


def status(
    answer: StatusOut,
    room: int,
    height: int | None = None,
    bars: bool = True,
    plain: bool = False,
) -> list[Block]:
    """The GPUs, and below them as many jobs as `height` lines have room for; None: any number.
    `plain`: in ASCII."""
    shows_bars = bars and room >= ROOM_FOR_BARS
    top: list[Block] = [headline(answer), "", *gpus(answer["gpus"], shows_bars, plain)]
    live, ended = live_and_ended(answer["jobs"])
    if not answer["jobs"]:
        return [*top, "", "no jobs: submit one with `carma submit -- COMMAND`"]
    left = None if height is None else max(LEAST_ROWS, height - len(layout(top, room)))
    below = _section("ended last (all: carma history)", ended)
    if left is not None and live:
        left -= 3  # an empty line, the title and the header
        if left - len(ended) - 4 < min(len(live), LEAST_ROWS):
            below = []
        else:
            left -= len(layout(below, room))
    shown = None if left is None else max(LEAST_ROWS, left)
    return [*top, *_section("jobs", live, shown, answer.get("more", 0), "carma queue"), *below]


def live_and_ended(jobs: Sequence[JobOut]) -> tuple[list[JobOut], list[JobOut]]:
    """Of those that ended, the last few, the very last one first."""
    ended = [job for job in jobs if job["code"] in SETTLED]
    ended.sort(key=lambda job: job.get("ended_at") or "", reverse=True)
    return [job for job in jobs if job["code"] not in SETTLED], ended[:MOST_ENDED]


def _section(
    title: str,
    jobs: Sequence[JobOut],
    most: int | None = None,
    hidden: int = 0,
    verb: str = "",
) -> list[Block]:
    """A table of jobs below a title. `hidden`: how many more the daemon has left out."""
    if not jobs:
        return []
    if most is not None and len(jobs) + bool(hidden) > most:
        jobs, left_out = jobs[: most - 1], jobs[most - 1 :]
        hidden += sum(job.get("count", 1) for job in left_out)
    more = [in_style(f"and {hidden} more: {verb}", "dim")] if hidden else []
    return [*render.heading(title), *render.jobs(jobs), *more]


def headline(answer: StatusOut) -> Line:
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
    return (
        (f"CARMA {server['version']}", "bold"),
        *alarms,
        *((f" · {fact}", "") for fact in facts if fact),
    )


def gpus(cards: Sequence[GpuOut], bars: bool, plain: bool = False) -> list[Block]:
    made = Table(columns("GPU> NAME~ MEMORY SMACT> SMOCC>? DRAMA>? POWER>? TEMP>? STATE WHO*"))
    for gpu in cards:
        made.add(
            str(gpu["index"]),
            _name(gpu),
            _memory(gpu, bars, plain),
            in_style(fraction(gpu["sm_active"]), "red" if gpu["risk"]["risky"] else ""),
            fraction(gpu["sm_occupancy"]),
            fraction(gpu["dram_active"]),
            number(gpu["power_w"], "W"),
            number(gpu["temperature_c"], "C"),
            in_style(gpu["state"], GPU_STYLE.get(gpu["state"], "yellow")),
            _who(gpu),
        )
    return [made]


def _name(gpu: GpuOut) -> str:
    """With its island, if there are several."""
    island = f" @{clean(gpu['island'])}" if gpu["island"] else ""
    return clean(gpu["name"]).removeprefix("NVIDIA ") + island


def _memory(gpu: GpuOut, bars: bool, plain: bool) -> Line:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    share = used / total if used is not None and total else None
    style = "" if share is None else "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    text = f"{memory(used)}/{memory(total)}"
    if bars:
        return (bar(share, BAR_WIDTH, plain), style), (f" {text}", "")
    return in_style(text, style)


def _who(gpu: GpuOut) -> Line:
    """Jobs as user:id(memory), and external processes, in the style of gpustat."""
    jobs = [
        f"{clean(job['user'])}:{job['label']}({memory(job['memory_mib'])})" for job in gpu["jobs"]
    ]
    others = [
        f"{clean(one['user'])}:pid{one['pid']}({memory(one['memory_mib'])})"
        for one in gpu["outsiders"]
    ]
    return (" ".join(jobs), ""), (" " * bool(jobs and others) + " ".join(others), "dim")


def gpu_report(answer: GpusOut) -> list[Block]:
    """Every GPU with its risk, and the limits below. UUIDs: --json."""
    made = Table(
        columns("GPU> NAME~ USED> TOTAL> PROMISABLE> SMACT> SMOCC>? DRAMA>? RISK JOBS>? STATE")
    )
    for gpu in answer["gpus"]:
        risk = gpu["risk"]
        made.add(
            str(gpu["index"]),
            _name(gpu),
            memory(gpu["memory_used_mib"]),
            memory(gpu["memory_mib"]),
            memory(gpu["admissible_free_mib"]),
            *(fraction(risk[key]) for key in ("sm_active", "sm_occupancy", "dram_active")),
            _risk(risk),
            str(len(gpu["jobs"])),
            in_style(gpu["state"], GPU_STYLE.get(gpu["state"], "yellow")),
        )
    details = [
        f"GPU {gpu['index']} {gpu['state']}: {clean(gpu['state_detail'])}"
        for gpu in answer["gpus"]
        if gpu["state_detail"]
    ]
    words = ", ".join(f"{name} {value}" for name, value in _flat(answer["thresholds"]))
    notes = [f"note: {clean(line)}" for line in answer["source"].get("notes", ())]
    return [made, "", *details, f"limits: {words}", *notes]


def _risk(risk: RiskOut) -> Line:
    if not risk["samples"]:
        return in_style(NOTHING, "")
    return in_style("high", "red") if risk["risky"] else in_style("low", "green")


def _flat(tree: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Settings by dotted name, such as risk.sm_active, as in `carma config show`."""
    found: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found
