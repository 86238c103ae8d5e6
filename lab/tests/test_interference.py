"""The fit of the interference that the simulator ships, and the pairs that it was made of."""

from __future__ import annotations

import json
from statistics import fmean, pvariance

import pytest

from carma_simulator.experiment import Load
from carma_simulator.interference import Additive, Conserving
from carmad.core.jobs.attempt import Mode
from lab.data import DATA
from lab.simulator.interference import SHIPPED, Sample, fit, lucid, saturating

MODES = json.loads(SHIPPED.read_text())["modes"]
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public pairs are not there")


def load(sm: float) -> Load:
    return Load(sm_active=sm, dram_active=0.0)


def test_the_fit_finds_what_made_the_pairs() -> None:
    truth = Conserving({Mode.MPS: 0.7})
    made = [
        Sample(own, (other,), truth.speeds((own, other), Mode.MPS)[0])
        for own in (load(0.2), load(0.9), load(0.6))
        for other in (load(0.3), load(1.0))
    ]
    assert fit(made) == pytest.approx(0.7)


@pytest.mark.parametrize(("speeds", "coefficient"), [((1.5, 1.5), 0.0), ((0.5, 1.5), 4 / 3)])
def test_speeds_above_1_are_fitted_as_1(speeds: tuple[float, float], coefficient: float) -> None:
    """Of 0.5 and 1 the mean is 0.75 = 1 / (1 + 4/3 · 0.5 · 0.5)."""
    made = [Sample(load(0.5), (load(0.5),), speed) for speed in speeds]
    assert fit(made) == pytest.approx(coefficient, abs=0.001)


@needs_data
def test_they_are_what_the_data_give() -> None:
    assert MODES["streams"]["sm"] == pytest.approx(fit(lucid()[0]), abs=0.001)
    assert MODES["mps"]["sm"] == MODES["streams"]["sm"]


@needs_data
def test_the_sum_of_demands_explains_saturating_pairs_as_well_as_their_mean() -> None:
    sides = saturating()[0]
    speeds = [side.speed for side in sides]
    errors = [Additive().speeds(side.loads, Mode.MPS)[0] - side.speed for side in sides]
    assert abs(fmean(errors)) < 0.06
    assert fmean(error**2 for error in errors) < 1.1 * pvariance(speeds)


@needs_data
def test_every_side_was_either_used_or_dropped() -> None:
    rows = (DATA / "lucid" / "colocated_pairs_rtx3090.csv").read_text().splitlines()[1:]
    streams = MODES["streams"]
    dropped = sum(
        count * (2 if why.startswith("pairs") else 1) for why, count in streams["dropped"].items()
    )
    assert streams["sides_of_pairs"] + dropped == 2 * len(rows)
    assert 0 < streams["taken_for_1"] < streams["sides_of_pairs"]
