"""Shared parts of benchmarks: entry point, reports and their files, tables, processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.harness import main as entry
from benchmarks.harness.data import folds
from benchmarks.harness.main import main
from benchmarks.harness.policies import Timed, simulate_with
from benchmarks.harness.processes import in_processes
from benchmarks.harness.report import Report, of_rows
from benchmarks.harness.rows import Row, columns
from carmad import registry
from carmad.config import Settings
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from carmad.sim.task import Task, Trace
from tests.commands import is_there, undescribed, written

Run = Callable[..., dict[str, str]]
ROWS = [Row("speed", "one", 3.0, "s", bound=2.0), Row("speed", "other", 5, "s")]


def measured(every: int = 1) -> Report:
    return of_rows("Speed", ROWS, "More.", data={"seeds": [1, 2]}, kept=every == 1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `measured` with these arguments; returns the texts of the result files by name."""

    def run(
        *arguments: str, needs: Path | None = None, package: str = "benchmarks"
    ) -> dict[str, str]:
        module = ModuleType("__main__", "How fast it is.")
        module.__spec__ = SimpleNamespace(name=f"{package}.speed.__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setattr(sys, "argv", ["speed", *arguments])
        monkeypatch.setattr(f"{package}.RESULTS", tmp_path / package)
        monkeypatch.setattr(entry, "circumstances", lambda: {"date": "today"})
        with pytest.raises(SystemExit) as ended:
            main("speed_test", measured, needs)
        where = f"the public data are not here: {needs}; where to get them: lab/DATA.md"
        assert ended.value.code in (0, where)
        return {path.name: path.read_text() for path in tmp_path.glob(f"{package}/*")}

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


def test_what_the_laboratory_measures_is_kept_there(run: Run) -> None:
    assert "- command: `python -m lab.speed`" in run(package="lab")["speed_test.md"]


def test_part_of_a_run_is_only_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--every", "2") == {}
    assert "- command: `python -m benchmarks.speed --every 2`" in capsys.readouterr().out


def test_without_its_data_a_command_ends_at_once(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(needs=tmp_path / "nowhere") == {}
    assert capsys.readouterr().out == ""


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


def test_results_come_in_the_order_of_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(in_processes(abs, [-3, 2, -1])) == [3, 2, 1]
    assert capsys.readouterr().err.splitlines() == ["1 of 3: 3", "2 of 3: 2", "3 of 3: 1"]


def test_every_name_is_held_out_once_for_each_seed() -> None:
    names = [f"n{n}" for n in range(10)]
    parts = folds(names, 0)
    assert sorted(name for part in parts for name in part) == names
    assert parts == folds(names, 0) != folds(names, 1)


def test_a_timed_policy_decides_as_the_policy_and_notes_each_plan() -> None:
    tasks = tuple(Task(name=f"t{n}", submit_s=0.0, duration_s=100.0) for n in range(3))
    settings = Settings(policy="fifo")
    experiment = Experiment(Trace("three", tasks), parse("1xA100-40GB"), settings)
    timed = Timed(registry.bare_policy(settings))
    outcome = simulate_with(timed, experiment)
    assert [len(job.attempts) for job in outcome.jobs] == [1, 1, 1]
    assert max(queued for queued, _ in timed.plans) == 3
    assert all(seconds >= 0 for _, seconds in timed.plans)


def test_every_command_that_is_written_down_is_there() -> None:
    assert [name for name in sorted(written("benchmarks")) if not is_there(name)] == []


def test_every_command_is_in_the_readme() -> None:
    assert list(undescribed("benchmarks")) == []
