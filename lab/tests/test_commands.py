"""The laboratory's commands, which are all described, and what they share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks import harness
from benchmarks.harness import Report
from carma_simulator.experiment import Experiment, Task, Trace
from carma_simulator.hardware import parse
from carmad import registry
from carmad.config import Settings
from lab import RESULTS
from lab.data import folds
from lab.main import main
from lab.policies import Timed, simulate_with
from lab.processes import in_processes
from tests.commands import is_there, undescribed, written


def test_every_command_that_is_written_down_is_there() -> None:
    assert [name for name in sorted(written("lab")) if not is_there(name)] == []


def test_every_command_is_in_the_readme() -> None:
    assert list(undescribed("lab")) == []


# Their commands have other names since; to be made again. `web_walk` was walked by hand.
OLDER = {
    "cluster_2000",
    "fidelity",
    "lucid_models",
    "memory_scripts",
    "scale",
    "slurm_ends",
    "slurm_faults",
    "web",
}


def test_every_page_of_results_names_a_command_that_is_there() -> None:
    unmade = set()
    for page in RESULTS.glob("*.md"):
        command = re.search(r"^- command: `python -m (\S+?)[ `]", page.read_text(), re.MULTILINE)
        if command is None or not is_there(command[1]):
            unmade.add(page.stem)
    assert unmade - {"web_walk"} <= OLDER


def measured(every: int = 1) -> Report:
    return Report("Speed", [f"Every {every}."], {"every": every})


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """For `main`, run as `python -m lab.speed --every 2`."""
    module = ModuleType("__main__", "How fast it is.")
    module.__spec__ = SimpleNamespace(name="lab.speed.__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(sys, "argv", ["speed", "--every", "2"])
    monkeypatch.setattr("lab.RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "circumstances", lambda: {"date": "today"})
    return tmp_path / "results"


def test_what_the_laboratory_measures_is_kept_there(results: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main("speed", measured, results.parent)
    assert ended.value.code == 0
    assert "- command: `python -m lab.speed --every 2`" in (results / "speed.md").read_text()
    assert json.loads((results / "speed.json").read_text())["every"] == 2


def test_without_its_data_a_command_ends_at_once(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = results / "nowhere"
    with pytest.raises(SystemExit) as ended:
        main("speed", measured, needs)
    where = f"the public data are not here: {needs}; where to get them: lab/DATA.md"
    assert ended.value.code == where
    assert not results.exists() and capsys.readouterr().out == ""


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
