"""Renders the API's answers with rich. Pure: no network, no clock, no terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from carmad.core.layout_text import OF_STAGE, OF_TIMES, written
from carmad.options import OPTIONS
from carmad.readable import clean
from cli.columns import COLUMNS, QUEUE, Column, params, where
from cli.format import (
    NOTHING,
    clock,
    command,
    exit_code,
    fraction,
    local_time,
    memory,
    number,
    span,
    spread,
)
from cli.known import of_job

if TYPE_CHECKING:
    from carmad.api.responses.decisions import DryRunOut, ReasonOut, VerdictOut, WhyOut
    from carmad.api.responses.jobs import ExitOut, JobOut
    from carmad.api.responses.server import DoctorOut, StatsOut

GAP = "  "
NARROWEST = 4
SHORT_NOTE = 12  # characters: a note up to this length goes next to the number
STATES = ("ST", "STATE")
STATE_STYLE = {
    "PD": "yellow",
    "RQ": "bold yellow",
    "H": "dim",
    "ST": "cyan",
    "R": "green",
    "CG": "magenta",
    "CD": "green",
    "CA": "dim",
    "F": "red",
    "TO": "red",
    "OOM": "bold red",
}


def table(headers: str) -> Table:
    """A table in squeue's style. `headers`: a > after one right-aligns its column, uncut."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers.split():
        right = header.endswith(">")
        made.add_column(header.rstrip(">"), justify="right" if right else "left", no_wrap=right)
    return made


def cell(text: str, style: str = "") -> Text:
    """On a narrow terminal a cell is cut, never wrapped."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True, slots=True)
class JobTable:
    """Jobs, one per line. There may be ten thousand, and rich's own tables take 1 ms per row."""

    jobs: Sequence[JobOut]
    fields: Sequence[str] = QUEUE
    noheader: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [COLUMNS[field] for field in self.fields]
        rows = [[column.cell(job) for column in columns] for job in self.jobs]
        widths = _widths(columns, rows, options.max_width)
        if not self.noheader:
            headers = [column.header for column in columns]
            yield Segment(_line(headers, columns, widths), console.get_style("bold"))
            yield Segment.line()
        state = next((at for at, column in enumerate(columns) if column.header in STATES), None)
        for job, row in zip(self.jobs, rows, strict=True):
            if state is None:
                yield Segment(_line(row, columns, widths))
            else:
                style = console.get_style(STATE_STYLE.get(job["code"], "none"))
                upto = slice(None, state), slice(state, state + 1), slice(state + 1, None)
                before, self_, after = (_line(row[s], columns[s], widths[s]) for s in upto)
                yield Segment(before + GAP * bool(before))
                yield Segment(self_, style)
                yield Segment(GAP * bool(after) + after)
            yield Segment.line()


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """As wide as their contents; if that is too wide, the widest columns shrink."""
    widths = [
        max(len(column.header), *(cell_len(row[at]) for row in rows), 0)
        for at, column in enumerate(columns)
    ]
    words = [at for at, column in enumerate(columns) if not column.number]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    while excess > 0 and words:
        widest = max(words, key=lambda at: widths[at])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    return GAP.join(
        _fitted(text, width, column.number)
        for text, column, width in zip(cells, columns, widths, strict=True)
    )


def _fitted(text: str, width: int, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def details(rows: Iterable[tuple[str, str]]) -> Table:
    """Name and value, one pair per line; values wrap."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        if value != NOTHING:
            made.add_row(name, Text(value))
    return made


def show(job: JobOut) -> RenderableType:
    parts: list[RenderableType] = [*_crash(job), details(_about(job))]
    parts += _aside(job)
    if history := job.get("history"):
        parts += [Text("\nhistory", style="bold")]
        parts += [Text(f"  {local_time(move['at'])}  {move['after']}") for move in history]
    return Group(*parts)


def _crash(job: JobOut) -> list[RenderableType]:
    """How its script stopped when it was tried."""
    crash = job.get("crash")
    return [Text(f"its script stops {clean(crash)}", style="bold red")] if crash else []


def _aside(job: JobOut) -> list[RenderableType]:
    """Earlier attempts and notes."""
    parts: list[RenderableType] = []
    if failures := job.get("failures"):
        parts += [Text("\nearlier attempts", style="bold")]
        parts += [Text(f"  {n}  {_ending(how)}") for n, how in enumerate(failures, 1)]
    if retry := job.get("retry"):
        parts += [Text(f"  next: {clean(retry)}")]
    if notes := job.get("notes"):
        parts += [Text("\nnotes", style="bold")]
        parts += [Text(f"  · {clean(note)}") for note in notes]
    return parts


def _about(job: JobOut) -> list[tuple[str, str]]:
    used = job["memory"]
    asked = need(job) or memory(used["declared_mib"])
    limit = job.get("time_limit_s")
    reason = clean(job.get("reason") or "")
    sm_active = job.get("sm_active_mean")
    how = job.get("exit")
    ended = f"{exit_code(how)}  {_ending(how)}".removeprefix(f"{NOTHING}  ") if how else NOTHING
    return [
        ("job", f"{job['label']}  {clean(job['name'])}"),
        ("user", clean(job["user"])),
        ("state", f"{job['state']}  {reason}".rstrip()),
        ("command", command(job.get("argv", [])) or NOTHING),
        ("parameters", params(job) or NOTHING),
        ("metrics", " ".join(f"{k}={v:g}" for k, v in job.get("metrics", {}).items()) or NOTHING),
        ("script", _script(job)),
        ("directory", clean(job.get("cwd", NOTHING))),
        ("output", clean(job.get("stdout", NOTHING))),
        ("errors", _errors(job)),
        ("submitted", local_time(job["submitted_at"])),
        *_options(job),
        ("waits for", _after(job)),
        ("place in line", str(job.get("position") or NOTHING)),
        ("started", local_time(job["started_at"])),
        ("ended", local_time(job.get("ended_at"))),
        ("time", clock(job["elapsed_s"]) + (f" of {clock(limit)}" if limit else "")),
        ("deadline", deadline(job)),
        ("waited", clock(job.get("wait_s"))),
        ("GPUs", f"{job['gpus_wanted']}" + (f"  on {where(job)}" if job["gpus"] else "")),
        ("mode", job.get("mode") or ("exclusive" if job.get("exclusive") else NOTHING)),
        ("batch", _batch(job)),
        ("layout", _layout(job)),
        ("stage times", _each(job.get("stage_times", ()), OF_TIMES)),
        ("memory need", f"{asked} per GPU" if asked != NOTHING else NOTHING),
        ("memory used", memory(used["used_mib"])),
        ("memory peak", memory(used["peak_mib"])),
        ("SM activity", fraction(sm_active)),
        ("energy", COLUMNS["energy"].cell(job)),
        ("GPU time", clock(job.get("gpu_seconds"))),
        ("attempt", str(job.get("attempt") or NOTHING) if job["gpus"] else NOTHING),
        ("exit", ended),
        ("advice", job.get("advice") or NOTHING),
    ]


def _script(job: JobOut) -> str:
    size = job.get("script_bytes")
    return NOTHING if size is None else f"copied at submission, {size} bytes"


def _options(job: JobOut) -> Iterator[tuple[str, str]]:
    """The given options that have their own line."""
    for name, option in OPTIONS.items():
        value = cast("Mapping[str, Any]", job).get(name, option.default)
        if option.show and value != option.default:
            yield option.show, _option(name, value)


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return next((form(value) for end, form in FORMS.items() if name.endswith(end)), clean(value))


def _warning(warn: Mapping[str, Any]) -> str:
    """A signal before the time limit: USR2, 1:00 before the time limit."""
    number = warn["signum"]
    known = {each.value: each.name.removeprefix("SIG") for each in signal.Signals}
    return f"{known.get(number, number)}, {clock(warn['before_s'])} before the time limit"


# How an option is shown, by the end of its name.
FORMS: dict[str, Callable[[Any], str]] = {
    "_at": local_time,
    "_s": clock,
    "_mib": memory,
    "warn": _warning,
}


def need(job: JobOut) -> str:
    """The estimate used to place it, such as `11.2G ±0.8 (history n=7)`; "" without one."""
    used = job["memory"]
    if used["estimate_mib"] is None:
        return ""
    origin = clean(" ".join([used["estimate_source"] or NOTHING, *_beside(job)]))
    return " ".join(filter(None, (memory(used["estimate_mib"]), spread(used), f"({origin})")))


def _beside(job: JobOut) -> list[str]:
    """The first note on its estimate, if short enough to go next to the number."""
    own = job.get("estimate")
    return [note for note in (own["notes"][:1] if own else ()) if len(note) <= SHORT_NOTE]


def deadline(job: JobOut) -> str:
    """When the job should finish, and whether it did or is predicted to."""
    at, late_s = job.get("deadline_at"), job.get("late_s")
    if at is None:
        return NOTHING
    if late_s is not None:
        return f"{local_time(at)}  {f'missed by {span(late_s)}' if late_s > 0 else 'met'}"
    outlook = job.get("outlook")
    return f"{local_time(at)}  {clean(outlook['text']) if outlook else ''}".rstrip()


def _layout(job: JobOut) -> str:
    spread = job.get("layout")
    if not spread:
        return NOTHING
    how = f"\nall-reduce: {spread['allreduce']}"
    return _each(spread["stages"], OF_STAGE) + how


def _each(stages: Sequence[Mapping[str, Any]], words: dict[str, str]) -> str:
    return "\n".join(clean(written(_rounded(one), words)) for one in stages) or NOTHING


def _rounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measured values rounded to readable digits."""
    return {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in fields.items()
    }


def _batch(job: JobOut) -> str:
    """The batch size of a job that may be split, and how it is split."""
    size, parts = job.get("batch_size"), job.get("accumulation", 1)
    if not size:
        return NOTHING
    return f"{size} per GPU" + (f", in {parts} parts of {size // parts}" if parts > 1 else "")


def _after(job: JobOut) -> str:
    return ", ".join(f"{one['kind']}:{one['job']}" for one in job.get("after", ())) or NOTHING


def _errors(job: JobOut) -> str:
    stderr = job.get("stderr", NOTHING)
    return NOTHING if stderr == job.get("stdout") else clean(stderr)


def _ending(how: ExitOut) -> str:
    words = how["cause"].replace("_", " ")
    if how["evidence"]:
        words += f": {clean(how['evidence'])}"
    if how["fragmented"]:
        words += " (enough memory was free, but fragmented)"
    if how["neighbours"]:
        words += f" (on the same GPUs, {clean(', '.join(how['neighbours']))})"
    return words


def why(answer: WhyOut) -> RenderableType:
    job = answer["job"]
    head = Text.assemble((f"Job {job['label']}", "bold"), f" {clean(answer['headline'])}")
    parts: list[RenderableType] = [head, *_crash(job)]
    if answer["position"]:
        behind = answer["behind"]
        after = f", behind job {behind['label']}" if behind else ""
        parts.append(Text(f"place in line: {answer['position']}{after}"))
    if answer["policy"]:
        when = local_time(answer["decided_at"])
        parts.append(Text(f"decided by the policy {answer['policy']} at {when}"))
    if (foreseen := deadline(job)) != NOTHING:
        parts.append(Text(f"deadline: {foreseen}"))
    news = [reason for reason in answer["reasons"] if reason["text"] not in answer["headline"]]
    parts += [Text(f"  · {refusal(reason)}") for reason in news]
    parts += [Text(f"  · {refusal(reason)}") for reason in answer.get("grounds", ())]
    parts += _need(job)
    parts += of_job(job)
    parts += _aside(job)
    if answer["verdicts"]:
        parts += [Text(), verdicts(answer["verdicts"], answer["chosen"])]
    if answer["remedies"]:
        parts += [Text("\nwhat would help", style="bold")]
        parts += [Text(f"  · {clean(remedy)}") for remedy in answer["remedies"]]
    return Group(*parts)


def _need(job: JobOut) -> list[RenderableType]:
    """The estimate that decides where it fits, its basis, and why there is no better one."""
    asked = need(job)
    own = job.get("estimate")
    notes = [note for note in (own["notes"] if own else ()) if note not in _beside(job)]
    head: list[RenderableType] = [Text(f"memory need: {asked} per GPU")] if asked else []
    return head + [Text(f"  · {clean(note)}") for note in notes]


def verdicts(judged: Sequence[VerdictOut], chosen: Sequence[str]) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for verdict in judged:
        index = verdict["gpu"]["index"]
        name = f"GPU {verdict['gpu']['id'] if index is None else index}"
        if verdict["refused"]:
            reasons = "\n".join(refusal(reason) for reason in verdict["refused"])
            made.add_row(Text(name, style="red"), Text(reasons))
            continue
        words = "chosen" if verdict["gpu"]["id"] in chosen else "would do"
        made.add_row(Text(name, style="green"), Text(words))
    return made


def refusal(reason: ReasonOut) -> str:
    return clean(reason["text"] or reason["code"])


def dry_run(answer: DryRunOut) -> RenderableType:
    head = "It would start now." if answer["would_start"] else "It would wait."
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [Text(f"  · {refusal(reason)}") for reason in answer.get("reasons", ())]
    parts.append(verdicts(answer["verdicts"], answer.get("chosen", ())))
    return Group(*parts)


def stats(answer: StatsOut) -> Table:
    made = table("USER JOBS> OK> FAILED> OOM> GPU-HOURS> ENERGY> WAIT(MEAN)> WAIT(P95)> RUN(MEAN)>")
    for row in (*answer["users"], answer["total"]):
        made.add_row(
            clean(row["user"] or "total"),
            *(str(row[key]) for key in ("jobs", "succeeded", "failed", "oom")),
            f"{row['gpu_hours']:.1f}",
            number(row["energy_kwh"], " kWh", 2),
            *(span(row[key]) for key in ("wait_mean_s", "wait_p95_s", "run_mean_s")),
            style="bold" if row is answer["total"] else "",
        )
    return made


CHECK_STYLE = {True: ("ok", "green"), None: ("warn", "yellow"), False: ("FAIL", "bold red")}


def doctor(answer: DoctorOut) -> RenderableType:
    made = Table(box=None, pad_edge=False, show_header=False)
    for check in answer["checks"]:
        word, style = CHECK_STYLE[check["ok"]]
        text = clean(check["detail"])
        if check["hint"] and check["ok"] is not True:
            text += f"\n→ {clean(check['hint'])}"
        made.add_row(Text(word, style=style), Text(check["name"]), Text(text))
    return made
