"""A benchmark's report: a page for people and data for machines, with where and when it ran."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness.rows import Row, summary, table

Facts = Mapping[str, str]


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
        return "\n\n".join([f"# {self.title}", listed(facts, *self.notes), *self.blocks]) + "\n"


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
    return Report(title, (table(rows), summary(rows), *blocks), found, notes, name, kept)


def listed(facts: Facts, *notes: str) -> str:
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


def _commit() -> str:
    """CARMA_COMMIT, for a copy without its repository, or what git says."""
    if told := os.environ.get("CARMA_COMMIT"):
        return told
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
