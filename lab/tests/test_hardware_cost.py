"""The campaign's stage `cost`, rehearsed, and its arithmetic."""

from __future__ import annotations

import subprocess
import time
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.daemon.carmad import Daemon
from lab.hardware import cost
from lab.hardware.cost import STAGE, interval, mean_step_s
from lab.hardware.training import Trained, Window
from lab.hardware.visit import Visit

pytest_plugins = ("tests.forked_carmad",)


@pytest.mark.long
def test_a_rehearsal_keeps_all_and_its_page_can_be_made(forked: None, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    visit = Visit(tmp_path, STAGE.name, rehearse=True)
    STAGE.measure(visit)
    kept = visit.entries()
    watched = kept[f"paused/{cost.REHEARSED}/emulated"]
    assert (len(watched["stopped_s"]), len(watched["running_s"])) == (3, 2)
    assert "sm_active" in watched["provides"]
    assert watched["cpu_ms_per_tick"] > 0
    alone, job = kept["run/alone/0"], kept["run/job/0"]
    for run in (alone, job):
        assert 0 < run["program_s"] < run["warm_s"]
        assert run["step_s"] > 0
    assert job["mode"] == "streams"
    table = STAGE.blocks(visit)[0]
    for what in ("emulated once a second", "a tick", "job, against alone", "submit to its program"):
        assert what in table
    STAGE.measure(visit)
    assert visit.entries() == kept, "nothing is measured twice"


def trained(*windows: tuple[float, list[float]]) -> Trained:
    """Windows by when they began and how long each step took."""
    return Trained(
        "made up",
        1.0,
        tuple(Window(began, tuple(list(accumulate(s, initial=began))[1:])) for began, s in windows),
    )


def test_a_phase_has_the_steps_that_lie_wholly_in_it() -> None:
    run = trained((10.0, [0.9, 0.1, 0.2, 0.3]), (20.0, [0.9, 0.5, 0.7]))
    # The first step of a window began with an empty queue; a step across an edge is nobody's.
    assert mean_step_s(run, 10.0, 11.25) == pytest.approx(0.15)
    assert mean_step_s(run, 10.0, 30.0) == pytest.approx((0.1 + 0.2 + 0.3 + 0.5 + 0.7) / 5)
    with pytest.raises(RuntimeError, match="too slow"):
        mean_step_s(run, 10.0, 10.5)


def test_the_interval_holds_the_median_and_narrows_with_agreement() -> None:
    apart = [1.0, 1.02, 0.99, 1.05, 1.01, 0.98, 1.03]
    low, high = interval(apart)
    assert low <= 1.01 <= high and high - low > 0.01
    assert interval([1.004] * 5) == (1.004, 1.004)
    assert interval(apart) == (low, high), "the dice are the same each time"


def test_a_drift_of_the_gpu_is_not_taken_for_the_daemon_s_cost() -> None:
    """Each step is longer than the last, whoever runs."""
    phases = [0.010 + n * 0.0001 for n in range(7)]
    entry = {"workload": "w", "source": "gpm", "step_s": 0.01, "cpu_ms_per_tick": 2.5}
    entry |= {"stopped_s": phases[0::2], "running_s": phases[1::2]}
    cost_of_a_step, _ = cost._paused(entry)
    assert cost_of_a_step.value == pytest.approx(0.0, abs=1e-9)


def test_the_page_judges_the_cost_by_the_goal(tmp_path: Path) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=False)
    paused = {"workload": "w", "source": "gpm", "step_s": 0.01, "cpu_ms_per_tick": 2.5}
    visit.keep("paused/w/gpm", {**paused, "stopped_s": [0.01] * 4, "running_s": [0.01003] * 3})
    visit.keep("run/alone/0", {"mean_s": 0.01, "step_s": 0.01, "program_s": 0.0, "warm_s": 9.0})
    job = {"mean_s": 0.0102, "step_s": 0.01, "program_s": 0.03, "warm_s": 9.03, "seen_s": 8.0}
    visit.keep("run/job/0", {**job, "mode": "streams"})
    visit.keep("paused/w/dcgm", {"failed": "RuntimeError: carmad did not start"})
    table, summary, *more = STAGE.blocks(visit)
    assert "- paused/w/dcgm: RuntimeError: carmad did not start" in more
    assert summary == "1 of 1 targets met", "so few whole runs are not judged"
    assert "0.300 %" in table and "2.00 %" in table and "2.50 ms" in table


def test_whole_runs_are_compared_with_those_of_the_same_turn() -> None:
    def run(mean_s: float) -> dict[str, float | None]:
        return {"mean_s": mean_s, "program_s": 0.0, "warm_s": 9.0, "seen_s": None}

    kept = {"run/alone/0": run(0.010), "run/alone/2": run(0.020)}
    kept |= {"run/job/0": run(0.0101), "run/job/1": run(9.9), "run/job/2": run(0.0204)}
    slower = next(cost._runs(kept))
    assert slower.value == pytest.approx(1.5)
    assert slower.spread == pytest.approx((1.0, 2.0)) and slower.note.startswith("range of 2 pairs")
    assert slower.met is None


def test_without_the_clock_of_another_process_its_seconds_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(clock: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    daemon = SimpleNamespace(pid=1, cpu_s=lambda: 1.25)
    assert cost.cpu_s(cast(Daemon, daemon)) == 1.25


def test_a_training_that_never_becomes_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost, "READY_WITHIN_S", 0.0)
    monkeypatch.setattr(cost, "END_WITHIN_S", 0.0)
    silent = ["/bin/sleep", "100"]
    with subprocess.Popen(silent) as process, (tmp_path / "out").open("w+") as output:
        with pytest.raises(RuntimeError, match="not ready"):
            cost.await_ready(process, output.fileno())
        process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        cost.output_of(silent, {})
