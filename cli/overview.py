"""Tables of jobs and of GPUs: `carma queue`, `history`, `status`, `top` and `gpus`, and what `-o`
may ask for. Pure, like `cli.render`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carmad.readable import clean
from carmad.states import ENDED_CODES
from cli.text import (
    NOTHING,
    Column,
    Table,
    bar,
    clock,
    columns,
    energy,
    exit_code,
    fraction,
    heading,
    height,
    in_style,
    local_time,
    memory,
    number,
    span,
    spread,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from carmad.api.gpus import GpuOut, GpusOut, ResidentOut, RiskOut
    from carmad.api.job import JobOut
    from carmad.api.server import StatusOut
    from cli.text import Block, Styled


class JobColumn(Column):
    """`header`: with its marks, as of `columns`; `key`: the number of a job, or of its memory, that
    it is sorted by; "": its text."""

    __slots__ = ("cell", "key")

    def __init__(self, header: str, cell: Callable[[JobOut], str], key: str = "") -> None:
        (its,) = columns(header)
        super().__init__(its.header, its.right, its.fit)
        self.cell = cell
        self.key = key


def where(job: JobOut) -> str:
    """Its GPUs, or why it has none."""
    if job["gpus"]:
        on = ",".join("?" if g["index"] is None else str(g["index"]) for g in job["gpus"])
        return f"{on} ({unused})" if (unused := kernelless(job)) else on
    if reason := job.get("reason"):
        return clean(reason)
    how = job.get("exit")
    return f"({how['cause']})" if how and how["cause"] != "success" else NOTHING


def kernelless(job: JobOut | ResidentOut) -> str:
    """That it has held its GPUs for long without a kernel on any of them; "" if it has not."""
    waited_s = job.get("kernelless_s")  # an older carmad does not send it
    return f"no kernel for {clock(waited_s)}" if waited_s else ""


def _energy(job: JobOut) -> str:
    joules = job.get("energy_j")
    return energy(None if joules is None else joules / 3.6e6)


def vram(job: JobOut) -> str:
    used = job["memory"]
    need = used["declared_mib"] or used["estimate_mib"]
    return f"{memory(used['used_mib'])}/{memory(need)}{spread(used)}"


def params(job: JobOut) -> str:
    """Of a task of a sweep."""
    return clean(" ".join(f"{name}={value}" for name, value in job.get("params", {}).items()))


COLUMNS = {
    "jobid": JobColumn("JOBID>", lambda j: j["label"], "id"),
    "name": JobColumn("NAME~", lambda j: clean(j["name"])),
    "params": JobColumn("PARAMS~", lambda j: params(j) or NOTHING),
    "user": JobColumn("USER~", lambda j: clean(j["user"])),
    "st": JobColumn("ST", lambda j: j["code"]),
    "state": JobColumn("STATE", lambda j: j["state"].upper()),
    "time": JobColumn("TIME>", lambda j: clock(j["elapsed_s"]), "elapsed_s"),
    "limit": JobColumn("LIMIT>?", lambda j: clock(j.get("time_limit_s")), "time_limit_s"),
    "gpus": JobColumn("GPUS>??", lambda j: str(j["gpus_wanted"]), "gpus_wanted"),
    "cpus": JobColumn("CPUS>", lambda j: str(j.get("cpus") or NOTHING), "cpus"),
    "mem": JobColumn("MEM>", lambda j: memory(j.get("host_memory_mib")), "host_memory_mib"),
    "vram": JobColumn("VRAM(USED/EST)>??", vram, "used_mib"),
    "peak": JobColumn("PEAK>??", lambda j: memory(j["memory"]["peak_mib"]), "peak_mib"),
    "where": JobColumn("GPU(REASON)*", where),
    "mode": JobColumn("MODE~", lambda j: j.get("mode") or NOTHING),
    "submitted": JobColumn("SUBMITTED", lambda j: local_time(j["submitted_at"])),
    "started": JobColumn("STARTED", lambda j: local_time(j["started_at"])),
    "ended": JobColumn("ENDED", lambda j: local_time(j.get("ended_at"))),
    "deadline": JobColumn("DEADLINE", lambda j: local_time(j.get("deadline_at"))),
    "wait": JobColumn("WAITED>?", lambda j: clock(j.get("wait_s")), "wait_s"),
    "place": JobColumn("PLACE>", lambda j: str(j.get("position") or NOTHING), "position"),
    "attempt": JobColumn("TRY>", lambda j: str(j.get("attempt", NOTHING)), "attempt"),
    "nice": JobColumn("NICE>", lambda j: str(j.get("nice", NOTHING)), "nice"),
    "exit": JobColumn("EXIT", lambda j: exit_code(j.get("exit"))),
    "energy": JobColumn("ENERGY>?", _energy, "energy_j"),
    "command": JobColumn("COMMAND~", lambda j: clean(" ".join(j.get("argv", [NOTHING])))),
}
QUEUE = ("jobid", "name", "user", "st", "time", "limit", "gpus", "vram", "where")
QUEUE_SHORT = ("jobid", "name", "st", "where")
QUEUE_WIDE = (*QUEUE[:-1], "peak", "submitted", "place", "where", "command")
QUEUE_LONG = (*QUEUE, "mode", "peak", "submitted", "place", "attempt", "nice", "command")
ORDERS = ("submitted", "ended", "name", "user", "state", "ran", "gpu-hours")  # of ended jobs
HISTORY = [
    "jobid",
    "name",
    "user",
    "state",
    "exit",
    "started",
    "time",
    "gpus",
    "peak",
    "energy",
    "wait",
]


def with_params(fields: Sequence[str], jobs: Iterable[JobOut]) -> Sequence[str]:
    """The columns, and behind the name the parameters if there is a sweep among the jobs."""
    if not any(job.get("params") for job in jobs):
        return fields
    at = fields.index("name") + 1
    return (*fields[:at], "params", *fields[at:])


def sort(jobs: list[JobOut], order: str) -> list[JobOut]:
    """`order`: a column's name; with - in front, in reverse."""
    column = COLUMNS[order.removeprefix("-")]

    def key(job: JobOut) -> Any:
        of: dict[str, Any] = {**job["memory"], **job}
        return of.get(column.key) or 0 if column.key else column.cell(job)

    return sorted(jobs, key=key, reverse=order.startswith("-"))


STATES = ("ST", "STATE")
STATE_STYLE = {
    "PD": "yellow",
    "RQ": "bold yellow",
    "H": "dim",
    "CF": "cyan",
    "R": "green",
    "CG": "magenta",
    "CD": "green",
    "CA": "dim",
    "F": "red",
    "TO": "red",
    "OOM": "bold red",
}


def job_table(
    listed: Sequence[JobOut],
    fields: Sequence[str] = (),
    noheader: bool = False,
    usual: Sequence[str] = QUEUE,
) -> Table:
    """Jobs, one per line. `fields`: all of these; otherwise, of the `usual` ones those that fit."""
    shown = [COLUMNS[field] for field in fields or with_params(usual, listed)]
    made = Table(shown, header=not noheader, drops=not fields)
    for job in listed:
        style = STATE_STYLE.get(job["code"], "")
        cells = ((column, column.cell(job)) for column in shown)
        made.add(*(in_style(text, style) if of.header in STATES else text for of, text in cells))
    return made


def top_table(listed: Sequence[JobOut], room: int, fields: Sequence[str] = ()) -> Table:
    """The jobs for `carma top`: as much of each as there is room for."""
    usual: Sequence[str] = QUEUE
    if room < ROOM_FOR_ALL:
        usual = QUEUE_SHORT
    elif room >= ROOM_FOR_MORE:
        usual = QUEUE_WIDE
    return job_table(listed, fields, usual=usual)


BAR_WIDTH = 10
ROOM_FOR_ALL, ROOM_FOR_MORE = 60, 160
ROOM_FOR_BARS = 110
MOST_ENDED = 5
LEAST_ROWS = 3  # of jobs, however low the terminal
TAKES_JOBS = ("ok", "settling")  # now, or after a while
GPU_STYLE = {"ok": "green", "settling": "cyan", "drained": "dim", "faulty": "bold red"}


def status(
    answer: StatusOut,
    room: int,
    lines: int | None = None,
    bars: bool = True,
    plain: bool = False,
) -> list[Block]:
    """The GPUs, and below them as many jobs as `lines` have room for; None: any number.
    `plain`: in ASCII."""
    shows_bars = bars and room >= ROOM_FOR_BARS
    top: list[Block] = [headline(answer), "", *gpus(answer["gpus"], shows_bars, plain)]
    live, ended = split_ended(answer["jobs"])
    if not answer["jobs"]:
        return [*top, "", "no jobs: submit one with `carma submit -- COMMAND`"]
    left = None if lines is None else max(LEAST_ROWS, lines - height(top, room))
    below = _section("ended last (all: carma history)", ended)
    if left is not None and live:
        left -= 3  # an empty line, the title and the header
        if left - len(ended) - 4 < min(len(live), LEAST_ROWS):
            below = []
        else:
            left -= height(below, room)
    shown = None if left is None else max(LEAST_ROWS, left)
    return [*top, *_section("jobs", live, shown, answer.get("more", 0), "carma queue"), *below]


def split_ended(jobs: Sequence[JobOut]) -> tuple[list[JobOut], list[JobOut]]:
    """Of those that ended, the last few, the very last one first."""
    ended = [job for job in jobs if job["code"] in ENDED_CODES]
    ended.sort(key=lambda job: job.get("ended_at") or "", reverse=True)
    return [job for job in jobs if job["code"] not in ENDED_CODES], ended[:MOST_ENDED]


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
    return [*heading(title), job_table(jobs), *more]


def headline(answer: StatusOut) -> Styled:
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
    told = [f" · {fact}" for fact in facts if fact]
    return styled((f"CARMA {server['version']}", "bold"), *alarms, *told)


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
    return [made, *_closed(cards)]


def _closed(cards: Sequence[GpuOut]) -> Iterator[str]:
    """Why GPUs take no jobs, unless that passes by itself: those with one reason in a line."""
    alike: dict[str, list[str]] = {}
    for gpu in cards:
        if gpu["state"] not in TAKES_JOBS and gpu["state_detail"]:
            why = f"{gpu['state']}: {clean(gpu['state_detail'])}"
            alike.setdefault(why, []).append(str(gpu["index"]))
    yield from (f"GPU {', '.join(gpus)} {why}" for why, gpus in alike.items())


def _name(gpu: GpuOut) -> str:
    """With its island, if there are several."""
    island = f" @{clean(gpu['island'])}" if gpu["island"] else ""
    return clean(gpu["name"]).removeprefix("NVIDIA ") + island


def _memory(gpu: GpuOut, bars: bool, plain: bool) -> Styled:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    share = used / total if used is not None and total else None
    style = "" if share is None else "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    text = f"{memory(used)}/{memory(total)}"
    if bars:
        return styled((bar(share, BAR_WIDTH, plain), style), f" {text}")
    return in_style(text, style)


def _who(gpu: GpuOut) -> Styled:
    """Jobs as user:id(memory), and external processes, in the style of gpustat."""
    jobs = [
        f"{clean(job['user'])}:{job['label']}({memory(job['memory_mib'])})" for job in gpu["jobs"]
    ]
    others = [
        f"{clean(one['user'])}:pid{one['pid']}({memory(one['memory_mib'])})"
        for one in gpu["outsiders"]
    ]
    return styled(" ".join(jobs), (" " * bool(jobs and others) + " ".join(others), "dim"))


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
            _risk(risk, answer["thresholds"]["risk"]["dram_active"]),
            str(len(gpu["jobs"])),
            in_style(gpu["state"], GPU_STYLE.get(gpu["state"], "yellow")),
        )
    details = [
        f"GPU {gpu['index']} {gpu['state']}: {clean(gpu['state_detail'])}"
        for gpu in answer["gpus"]
        if gpu["state_detail"]
    ]
    details += [
        f"GPU {gpu['index']} works, but {clean(each['message'])}"
        for gpu in answer["gpus"]
        for each in gpu.get("conditions", ())  # an older daemon names none
    ]
    details += [
        f"GPU {gpu['index']}: job {job['label']} has run {unused}: carma why {job['label']}"
        for gpu in answer["gpus"]
        for job in gpu["jobs"]
        if (unused := kernelless(job))
    ]
    words = ", ".join(f"{name} {value}" for name, value in _flat(answer["thresholds"]))
    notes = [f"note: {clean(line)}" for line in answer["source"].get("notes", ())]
    return [made, "", *details, f"limits: {words}", *notes]


def _risk(risk: RiskOut, dram_limit: float) -> Styled:
    """A GPU whose memory is the bottleneck takes jobs while its SMs are not busy enough for the
    paper's test: that is no reason to call the risk low."""
    if not risk["samples"]:
        return in_style(NOTHING, "")
    if risk["risky"]:
        return in_style("high", "red")
    if (risk["dram_active"] or 0.0) >= dram_limit:
        return in_style("memory-bound", "yellow")
    return in_style("low", "green")


def _flat(tree: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Settings by dotted name, such as risk.sm_active, as in `carma config show`."""
    found: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found
