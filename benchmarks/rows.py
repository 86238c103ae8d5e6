"""What a measurement answers with, and how the answers are printed and kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from carmad.sim.report import markdown

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `bound` is what it must not exceed, or with `least` not fall below."""

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
            target = f"{'≥' if self.least else '≤'} {_number(self.bound)} {self.unit}"
        spread = f"{_number(self.spread[0])}–{_number(self.spread[1])}" if self.spread else ""
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        measured = f"{_number(self.value)} {self.unit}"
        return self.group, self.what, target.rstrip(), measured, spread, verdict, self.note


HEADINGS = ("", "what", "target", "measured", "runs", "", "note")


def of_runs(group: str, what: str, runs: Sequence[float], unit: str, **more: object) -> Row:
    """The median of several runs, with their spread."""
    spread = (min(runs), max(runs)) if len(runs) > 1 else None
    return Row(group, what, statistics.median(runs), unit, spread=spread, **more)  # type: ignore[arg-type]


def percentile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def table(rows: Sequence[Row]) -> str:
    return markdown.table(HEADINGS, [row.cells() for row in rows])


def summary(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.met is not None]
    missed = [f"{row.group}: {row.what}" for row in judged if not row.met]
    text = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return text + (f"; MISSED: {'; '.join(missed)}" if missed else "")


def circumstances() -> dict[str, str]:
    """Where and when: a number without them says little."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": _commit(),
        "load when begun": load,
    }


def save(rows: Sequence[Row], facts: dict[str, str]) -> Path:
    """JSON for machines and the table for people; the names tell the moment."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{facts['date'].replace(':', '')}.json"
    measured = [{**asdict(row), "met": row.met} for row in rows]
    file.write_text(json.dumps({"facts": facts, "rows": measured}, indent=1) + "\n")
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    text = "\n".join(["# Speed, as measured", "", *lines, "", table(rows), "", summary(rows), ""])
    file.with_suffix(".md").write_text(text)
    return file


def _number(value: float) -> str:
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    try:
        words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(
            words, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
