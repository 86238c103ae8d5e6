"""Shared parts of benchmarks: entry point, reports and their files, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks import harness
from benchmarks.harness import Report, Row, columns, main, of_rows
from tests.commands import is_there, undescribed, written

Run = Callable[..., dict[str, str]]
ROWS = [Row("speed", "one", 3.0, "s", bound=2.0), Row("speed", "other", 5, "s")]


def measured(every: int = 1) -> Report:
    return of_rows("Speed", ROWS, "More.", data={"seeds": [1, 2]}, kept=every == 1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `measured` with these arguments; returns the texts of the result files by name."""

    def run(*arguments: str) -> dict[str, str]:
        module = ModuleType("__main__", "How fast it is.")
        module.__spec__ = SimpleNamespace(name="benchmarks.speed.__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setattr(sys, "argv", ["speed", *arguments])
        monkeypatch.setattr("benchmarks.RESULTS", tmp_path / "results")
        monkeypatch.setattr(harness, "circumstances", lambda: {"date": "today"})
        with pytest.raises(SystemExit) as ended:
            main("speed_test", measured)
        assert ended.value.code == 0
        return {path.name: path.read_text() for path in tmp_path.glob("results/*")}

    return run


def test_a_whole_run_is_printed_and_kept(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    kept = run()
    assert set(kept) == {"speed_test.md", "speed_test.json"}
    page = kept["speed_test.md"]
    assert page.startswith("# Speed\n\n- date: today\n- command: `python -m benchmarks.speed`\n\n|")
    assert page.endswith("0 of 1 targets met; MISSED: speed: one\n\nMore.\n")
    assert page in capsys.readouterr().out
    data = json.loads(kept["speed_test.json"])
    assert data["facts"] == {"date": "today", "command": "`python -m benchmarks.speed`"}
    assert [(row["value"], row["met"]) for row in data["rows"]] == [(3.0, False), (5, None)]
    assert data["seeds"] == [1, 2]
    assert len(kept["speed_test.json"].splitlines()) == 14, "a line for each entry of a list"


def test_part_of_a_run_is_only_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--every", "2") == {}
    assert "- command: `python -m benchmarks.speed --every 2`" in capsys.readouterr().out


def test_the_modules_text_is_the_help(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == {}
    said = capsys.readouterr().out
    assert "How fast it is." in said and "--every" in said


@dataclass(frozen=True)
class Job:
    name: str
    share: float


def test_a_column_is_a_format_or_a_function() -> None:
    table = columns(
        [Job("a", 0.5), Job("bcd", 0.25)],
        ("job", "{0.name}"),
        ("share", lambda job: f"{100 * job.share:.0f} %"),
    )
    assert table.splitlines() == [
        "| job | share |",
        "|-----|------:|",
        "| a   |  50 % |",
        "| bcd |  25 % |",
    ]


def test_every_command_that_is_written_down_is_there() -> None:
    assert [name for name in sorted(written("benchmarks")) if not is_there(name)] == []


def test_every_command_is_in_the_readme() -> None:
    assert list(undescribed("benchmarks")) == []
