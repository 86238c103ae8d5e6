"""What all measurements share: timing, rows with targets, tables, reports, and one entry point."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer

from benchmarks import ROOT
from carmad.readable import number

PATIENCE_S = 300.0  # it only ends a hang: a busy machine may need minutes
HEADINGS = ("", "what", "target", "measured", "runs", "", "note")
Column = tuple[str, str | Callable[[Any], str]]
Facts = Mapping[str, str]


# -- timing


def milliseconds(do: Callable[[], object]) -> float:
    """By the wall clock."""
    begun = time.perf_counter()
    do()
    return (time.perf_counter() - begun) * 1000


def fsync_ms() -> float:
    """Of 4 KiB in a new temporary file: no durable commit can be faster."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        return milliseconds(lambda: os.fsync(file.fileno()))


def until(
    read: Callable[[], Any],
    what: str = "it",
    within_s: float = PATIENCE_S,
    wanted: Callable[[Any], object] = bool,
) -> Any:
    """The first value that is as wanted; it is read less and less often, as each read costs."""
    begun = time.monotonic()
    while True:
        if wanted(value := read()):
            return value
        if (waited := time.monotonic() - begun) > within_s:
            raise AssertionError(f"waited {within_s} s in vain for {what}: {value!r}")
        time.sleep(min(max(0.01, waited / 10), 0.2))


# -- rows of measurements with their targets


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `bound` is what it must not exceed, or with `least` not fall below."""

    COMPUTED: ClassVar = ("met",)
    group: str
    what: str
    value: float
    unit: str
    bound: float | None = None  # None: told for comparison only
    least: bool = False
    spread: tuple[float, float] | None = None  # lowest and highest of the runs
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound

    def cells(self) -> tuple[str, ...]:
        target = ""
        if self.bound is not None:
            target = f"{'≥' if self.least else '≤'} {number(self.bound)} {self.unit}"
        spread = f"{number(self.spread[0])}–{number(self.spread[1])}" if self.spread else ""
        measured = f"{number(self.value)} {self.unit}"
        cells = (self.group, self.what, target.rstrip(), measured, spread)
        return *cells, verdict(self.met), self.note


def columns(rows: Iterable[object], *columns: Column, text: Collection[int] = (0,)) -> str:
    """A table with a line for each row; columns are set right, but for `text`, counted from 0.

    A column is its heading and what a row has in it: a format ("{0.jobs:,}") or a function.
    """
    cells = [
        [form.format(row) if isinstance(form, str) else form(row) for _, form in columns]
        for row in rows
    ]
    return markdown_table([name for name, _ in columns], cells, {*range(len(columns))} - {*text})


def verdict(met: bool | None) -> str:
    return {None: "", True: "met", False: "MISSED"}[met]


def of_runs(group: str, what: str, runs: Sequence[float], unit: str, **more: object) -> Row:
    """The median of several runs, with their spread."""
    spread = (min(runs), max(runs)) if len(runs) > 1 else None
    return Row(group, what, statistics.median(runs), unit, spread=spread, **more)  # type: ignore[arg-type]


def percentile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def row_table(rows: Sequence[Row]) -> str:
    return markdown_table(HEADINGS, [row.cells() for row in rows])


def summary(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.met is not None]
    missed = [f"{row.group}: {row.what}" for row in judged if not row.met]
    text = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return text + (f"; MISSED: {'; '.join(missed)}" if missed else "")


# -- Markdown tables, aligned so that they are also readable in a terminal


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()
) -> str:
    """`numbers` are the right-aligned columns, counted from 0."""
    lines = [headings, *([_escape(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def write_line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if n in numbers else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|".join(
        "-" * (width + 1) + (":" if n in numbers else "-") for n, width in enumerate(widths)
    )
    return "\n".join([write_line(headings), f"|{rule}|", *map(write_line, lines[1:])])


def _escape(cell: str) -> str:
    return cell.replace("|", r"\|")


# -- reports: a page for people and data for machines, with where and when it ran


@dataclass(frozen=True, slots=True)
class Report:
    """`blocks` (headings, paragraphs, tables; Markdown) are set apart by blank lines."""

    title: str
    blocks: Sequence[str]
    data: Mapping[str, object]
    notes: Sequence[str] = ()  # set below the facts
    name: str = ""  # of the result files; "": the command's
    kept: bool = True  # False: printed only, as the run was not a whole one

    def page(self, facts: Facts) -> str:
        return "\n\n".join([f"# {self.title}", list_facts(facts, *self.notes), *self.blocks]) + "\n"


def of_rows(
    title: str,
    rows: Sequence[Row],
    *blocks: str,
    data: Mapping[str, object] | None = None,
    notes: Sequence[str] = (),
    name: str = "",
    kept: bool = True,
) -> Report:
    """A table of rows and how many targets were met, then `blocks`."""
    found = {"rows": rows, **(data or {})}
    return Report(title, (row_table(rows), summary(rows), *blocks), found, notes, name, kept)


def list_facts(facts: Facts, *notes: str) -> str:
    return bullets([*(f"{name}: {value}" for name, value in facts.items()), *notes])


def bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def write(folder: Path, name: str, page: str, data: Mapping[str, object]) -> None:
    """Write NAME.md and NAME.json in the folder."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(_json(data))
    file.with_suffix(".md").write_text(page)
    print(f"kept in {file} and the .md beside it")


def circumstances() -> dict[str, str]:
    """Date, machine, commit and load: a measurement means little without them."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": _commit(),
        "load when begun": " ".join(f"{value:.1f}" for value in os.getloadavg()),
    }


def _json(data: Mapping[str, object]) -> str:
    """A line for each entry of a list or table at the top: runs hold many numbers."""

    def entries(value: object) -> str:
        if isinstance(value, Mapping):
            return _lines("{}", [f"{_line(name)}: {_line(each)}" for name, each in value.items()])
        if isinstance(value, list | tuple):
            return _lines("[]", [_line(each) for each in value])
        return _line(value)

    return _lines("{}", [f"{_line(name)}: {entries(each)}" for name, each in data.items()]) + "\n"


def _lines(brackets: str, entries: Sequence[str]) -> str:
    return brackets[0] + "\n" + ",\n".join(entries) + "\n" + brackets[1] if entries else brackets


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_fields)


def _fields(value: object) -> dict[str, object]:
    """A dataclass's fields, and the properties that its COMPUTED names."""
    computed = {name: getattr(value, name) for name in getattr(value, "COMPUTED", ())}
    return {**asdict(value), **computed}  # type: ignore[call-overload]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


MADE = ("benchmarks/results", "lab/results")  # by benchmarks


def _commit() -> str:
    """CARMA_COMMIT, for a copy without its repository, or what git says. Results that were made
    anew do not make a copy dirty: several can be made on one commit."""
    if told := os.environ.get("CARMA_COMMIT"):
        return told
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", *(f":!{each}" for each in MADE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.strip()


# -- the entry point of every benchmark


def main(name: str, measure: Callable[..., Report]) -> None:
    """Run `measure` as a command: its parameters are the options, its module's text the help.

    Prints the report and writes NAME.md and .json in the RESULTS of the command's top package.
    """
    module = sys.modules["__main__"]
    assert module.__spec__
    path = module.__spec__.name.removesuffix(".__main__")
    command = ["python", "-m", path]
    results: Path = import_module(path.partition(".")[0]).RESULTS

    @wraps(measure)
    def run(**options: object) -> None:
        facts = circumstances()
        facts["command"] = f"`{shlex.join([*command, *sys.argv[1:]])}`"
        report = measure(**options)
        page = report.page(facts)
        print(page)
        if report.kept:
            write(results, report.name or name, page, {"facts": facts, **report.data})

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=module.__doc__)(run)
    app()
