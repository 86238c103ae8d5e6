"""What `carma simulate --what-if` tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from carma_simulator.commands import what_if
from carma_simulator.experiment import Experiment
from carma_simulator.report.measures import runs
from tests.extras.carma_simulator.outcomes import experiment, made_up


def test_each_policy_is_simulated_in_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up(10, "3xA100-40GB", 2, policy="magm")
    past = SimpleNamespace(experiment=experiment(made), outcome=made, notes=())
    asked: list[Experiment] = []
    monkeypatch.setattr("carma_simulator.recorded.from_history", lambda *_, **__: past)
    monkeypatch.setattr("carma_simulator.sweep.sweep", lambda each, *_: asked.extend(each) or [])
    what_if._simulate(7, ["lucid"])
    assert [each.settings.predictor for each in asked] == ["history", "additive"]


def test_the_table_comes_without_what_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "carma_simulator.report.charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    made = made_up(10, "3xA100-40GB", 2, policy="magm")
    found = runs([(experiment(made), made)])
    report = what_if._report(found)
    assert "report" not in report and "install" in report["hint"]
    row = what_if._row(found[0])
    assert row["policy"] == "magm" and row["jct_s"] > 0 and row["makespan_s"] > 0
