"""What a simulated run was used for, in the words of `carma stats --report week`."""

from __future__ import annotations

from pathlib import Path

import pytest

from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carma_simulator.report.export import report_of as simulated
from carma_simulator.run import simulate
from carma_simulator.traces import sources
from carmad.report import as_markdown
from cli.main import run
from tests.carmad.core.test_sharing import HOUR
from tests.extras.carma_simulator import outcomes


def test_a_simulated_run_is_reported_by_the_same_code() -> None:
    """Two jobs of 1 h alone take 1.5 h together."""
    hour = int(HOUR)
    made = outcomes.outcome(
        outcomes.job(0, outcomes.attempt(0, 1.5 * hour), alone_s=hour, user="ada"),
        outcomes.job(0, outcomes.attempt(0, 1.5 * hour), alone_s=hour, id=2, user="ben"),
        cluster=parse("1xA100-40GB"),
        gpus=(outcomes.gpu("g0"),),
    )
    out = simulated(made)
    assert (out["since"], out["hours"], out["jobs"]) == (None, 1.5, 2)
    assert (out["sharing"]["saved_gpu_hours"], out["sharing"]["slowdown"]) == (0.5, 1.5)
    assert as_markdown(out).startswith("# by hand under magm, simulated: 1.5 h\n")


def test_savings_add_up_to_what_jobs_take_alone_less_the_busy_time() -> None:
    made = simulate(
        Experiment(sources.load("generate:carma-1?seed=68&tasks=40"), parse("3xA100-40GB"))
    )
    out = simulated(made)
    alone_h = sum(one.alone_s * len(one.attempts[-1].gpus) for one in made.jobs) / HOUR
    busy_h = sum(gpu["busy_hours"] for gpu in out["gpus"])
    assert out["sharing"]["known"] == 1.0 and out["ooms"]["saved"] > 0
    assert out["sharing"]["saved_gpu_hours"] > 1.0
    assert out["sharing"]["saved_gpu_hours"] == pytest.approx(alone_h - busy_h, abs=0.01)


def test_simulate_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "generate:lab?tasks=5", "--no-cache"]
    page = tmp_path / "run.html"
    assert run([*words, "--report", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert run([*words, "--report", "-"]) == 0
    assert capsys.readouterr().out.startswith("# lab-0 under magm, simulated")
    assert run([*words, "--report", str(page), "-p", "magm", "-p", "exclusive"]) == 2
    assert "single run" in capsys.readouterr().err
