"""How a report of a period reads: what it says, in words; as Markdown that also reads well in a
terminal, and as one self-contained page. And whole weeks and months. Imports stay light: `carma
report` is quick."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from carmad.readable import clean, duration, energy

if TYPE_CHECKING:
    from carmad.api.report import ReportOut


def last(period: str, today: date) -> tuple[datetime, datetime]:
    """The last whole week, Monday to Sunday, or calendar month, before `today`. In local time: a
    week in which the clock changes has an hour more or less."""
    if period == "month":
        until = today.replace(day=1)
        since = (until - timedelta(days=1)).replace(day=1)
    else:
        until = today - timedelta(days=today.weekday())
        since = until - timedelta(days=7)
    return _midnight(since), _midnight(until)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time()).astimezone()


NOTHING = "–"
LONGEST = 60  # characters of a name
OTHERS = "all others"
SOURCES = {
    "steps": "step times that jobs reported",
    "runs": "runs of the same job alone",
    "activity": "SM activity together and alone",
    "simulation": "the simulation",
}


class Section:
    """A heading, sentences, and a table with bars for numbers that compare."""

    def __init__(
        self,
        title: str,
        lines: Iterable[str] = (),
        head: Iterable[str] = (),
        rows: Iterable[tuple[str, ...]] = (),
        bars: Iterable[float] = (),
    ) -> None:
        self.title = title
        self.lines = list(lines)
        self.head = list(head)  # columns of numbers end in ">"
        self.rows = list(rows)
        self.bars = list(bars)  # one per row, 0–1; none: no bars


def title(report: ReportOut) -> str:
    if given := report.get("title"):
        return clean(given)
    since, until = _local(report["since"]), _local(report["until"])
    if since.time() == until.time() == datetime.min.time():
        return f"CARMA, {since:%a %d %b %Y} to {until - timedelta(days=1):%a %d %b %Y}"
    return f"CARMA, {since:%a %d %b %Y %H:%M} to {until:%a %d %b %Y %H:%M}"


def sections(report: ReportOut) -> list[Section]:
    """Those with something to say."""
    if not report["jobs"]:
        return [Section("GPUs", ["No job held a GPU."]), *_external(report)]
    return [
        *_gpus(report),
        Section("Sharing", sharing(report)),
        *_users(report),
        *_memory(report),
        *_waits(report),
        *_idle(report),
        *_external(report),
    ]


def _gpus(report: ReportOut) -> Iterator[Section]:
    gpus, hours = report["gpus"], report["hours"]
    busy = sum(gpu["busy_hours"] for gpu in gpus)
    whole = hours * len(gpus)
    said = [
        f"{_count(report['jobs'], 'job')} held GPUs, which were busy for {busy:,.1f} of"
        f" {whole:,.1f} GPU-hours ({busy / whole:.0%}).",
    ]
    rows = [
        (
            clean(gpu["id"] if gpu["index"] is None else f"{gpu['index']}  {gpu['name']}"),
            f"{gpu['busy_hours']:,.1f}",
            _part(gpu["busy_hours"], hours),
            _part(gpu["shared_hours"], gpu["busy_hours"]),
            f"{gpu['idle_hours']:,.1f}",
            str(gpu["jobs"]),
        )
        for gpu in gpus
    ]
    head = ("GPU", "busy h>", "busy>", "shared>", "idle h>", "jobs>")
    yield Section("GPUs", said, head, rows, [gpu["busy_hours"] / hours for gpu in gpus])


def sharing(report: ReportOut) -> list[str]:
    """Sentences on what sharing gained or cost, and how that is known."""
    its = report["sharing"]
    if not its["jobs"]:
        return ["No two jobs shared a GPU."]
    part, whose = its["shared"] or 0.0, _count(its["jobs"], "job")
    said = [f"The GPUs in use were shared {part:.0%} of the time, by {whose}."]
    if its["slowdown"] is not None:
        saved, known = its["saved_gpu_hours"], its["known"] or 0.0
        effect = f"that {'saved' if saved >= 0 else 'lost'} {abs(saved):,.1f} GPU-hours, and slowed"
        effect += f" them by {its['slowdown'] - 1:.1%} while they shared."
        said[0] += f" {'T' + effect[1:] if known > 0.995 else 'As far as it is known, ' + effect}"
        sources = sorted(its["sources"].items())
        how = ", ".join(f"{SOURCES[name]} ({_count(jobs, 'job')})" for name, jobs in sources)
        said.append(f"Known for {known:.0%} of the time in company, from {how}.")
    if its["unknown_at_most_gpu_hours"]:
        whose = "the other jobs" if its["slowdown"] is not None else "they"
        said.append(f"How much {whose} were slowed was not measured.")
    return said


def _users(report: ReportOut) -> Iterator[Section]:
    rows = [
        (
            _user(row["user"]),
            str(row["jobs"]),
            f"{row['gpu_hours']:,.1f}",
            NOTHING if row["share"] is None else f"{row['share']:.0%}",
            energy(row["energy_kwh"]) if row["energy_kwh"] else NOTHING,
        )
        for row in report["users"]
    ]
    head = ("user", "jobs>", "GPU-hours>", "share>", "energy>")
    yield Section("Users", (), head, rows, [row["share"] or 0.0 for row in report["users"]])


def _memory(report: ReportOut) -> Iterator[Section]:
    ooms = report["ooms"]
    said = ["No job ran out of GPU memory."]
    if ooms["jobs"]:
        waiting = f", and {ooms['waiting']} are not over" if ooms["waiting"] else ""
        said = [
            f"{_count(ooms['jobs'], 'job')} ran out of GPU memory, {ooms['crashes']} times in all;"
            f" {ooms['saved']} of them succeeded when retried{waiting}."
        ]
    rows = [
        (
            clean(row["source"]),
            str(row["jobs"]),
            f"{row['ratio_median']:.2f}",
            f"{row['under']:.0%}",
        )
        for row in report["estimates"]
    ]
    head = ("estimates by", "jobs>", "median of estimate / peak>", "too low>")
    yield Section("Memory", said, head if rows else (), rows)


def _waits(report: ReportOut) -> Iterator[Section]:
    why = any(row["why"] for row in report["waits"])
    rows = [
        (
            duration(row["wait_s"]) + ("" if row["started"] else " so far"),
            *_whose(row),
            *([_short(row["why"]) or NOTHING] if why else []),
        )
        for row in report["waits"]
    ]
    head = ("waited>", "job", "user", "name", *(["mostly for"] if why else []))
    if rows:
        yield Section("Longest waits", (), head, rows)


def _idle(report: ReportOut) -> Iterator[Section]:
    rows = [
        (f"{row['gpu_hours']:,.1f}", *_whose(row), f"{row['sm_active']:.1%}")
        for row in report["idle"]
    ]
    head = ("GPU-hours>", "job", "user", "name", "SM activity>")
    if rows:
        yield Section("Held GPUs without using them", (), head, rows)


def _external(report: ReportOut) -> Iterator[Section]:
    rows = [
        (_user(row["user"]), str(row["processes"]), f"{row['gpu_hours']:,.1f}")
        for row in report["external"]
    ]
    if rows:
        yield Section("Outside of the queue", (), ("user", "processes>", "GPU-hours>"), rows)


def _whose(row: Any) -> tuple[str, str, str]:
    return row["label"], _user(row["user"]), _short(row["name"])


def _user(name: str) -> str:
    return _short(name) if name else OTHERS


def _short(text: str) -> str:
    text = clean(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _part(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else NOTHING


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _local(stamp: str | None) -> datetime:
    return datetime.fromisoformat(stamp or "1970-01-01T00:00:00Z").astimezone()


_MARKUP = re.compile(r"[\\`*\[\]<>|&]")  # what could be more than text in a cell


def as_markdown(report: ReportOut, titled: bool = True) -> str:
    """`titled`: False for a mail, whose subject the title is."""
    parts = [f"# {_text(title(report))}"] if titled else []
    for section in sections(report):
        parts += [f"## {section.title}", *map(_text, section.lines)]
        if section.rows:
            parts.append("\n".join(_table(section)))
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> Iterator[str]:
    right = [name.endswith(">") for name in section.head]
    rows = [tuple(name.removesuffix(">") for name in section.head)]
    rows += [tuple(map(_text, row)) for row in section.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = zip(row, widths, right, strict=True)
        yield f"| {' | '.join(c.rjust(w) if end else c.ljust(w) for c, w, end in cells)} |"
        if not number:
            rules = zip(widths, right, strict=True)
            yield f"|{'|'.join('-' * (w + 1) + (':' if end else '-') for w, end in rules)}|"


def _text(words: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", words)


def as_page(report: ReportOut) -> str:
    from carmad.html import environment, style

    template = environment("carmad.html").get_template("period.html.j2")
    return template.render(style=style(), title=title(report), sections=sections(report))
