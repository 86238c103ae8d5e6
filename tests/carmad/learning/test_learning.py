"""Trainers: exported models predict the same as the libraries, and learn what they should."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from random import Random

import numpy as np
import pytest

pytest.importorskip("interpret", reason="the extra carma-gpu[policies] is not installed")
pytest.importorskip("sklearn", reason="the extra carma-gpu[policies] is not installed")

from interpret.glassbox import ExplainableBoostingRegressor

from carmad.learning.features import exemplars_of
from carmad.learning.models import Additive, Bins, Shape
from carmad.learning.training import lucid
from carmad.learning.training.lucid import Origin, exemplars, monotone

ORIGIN = Origin("what", "nowhere", 7.0)


@pytest.fixture(autouse=True, scope="module")
def brief() -> Iterator[None]:
    """Reduces the training effort."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lucid, "ROUNDS", 60)
        patch.setattr(lucid, "BAGS", 4)
        yield


def _rows(count: int, seed: int) -> list[dict[str, float | str]]:
    random = Random(seed)
    rows: list[dict[str, float | str]] = [
        {
            "x": random.gauss(0, 1),
            "n": float(random.randrange(9)),
            "who": random.choice("abc"),
            "what": random.choice(("10", "20")),  # a text that looks like a number
        }
        for _ in range(count)
    ]
    for row in rows:
        for name in [name for name in row if random.random() < 0.1]:
            del row[name]
    return rows


def _truth(row: dict[str, float | str]) -> float:
    x, n = float(row.get("x", 0)), float(row.get("n", 0))
    return 3 * x + n * (row.get("who") == "a") + (row.get("what") == "20")


def test_an_additive_value_predicts_what_interpret_does() -> None:
    names, types = ["x", "n", "who", "what"], ["continuous", "continuous", "nominal", "nominal"]
    rows = _rows(400, seed=1)
    machine = ExplainableBoostingRegressor(
        feature_names=names,
        feature_types=types,
        interactions=4,
        outer_bags=2,
        max_rounds=50,
        max_interaction_bins=8,  # so that pairs have other bins than shapes
        random_state=0,
        n_jobs=1,
    )

    def matrix(table: list[dict[str, float | str]]) -> object:
        return np.array([[row.get(name) for name in names] for row in table], dtype=object)

    with pytest.warns(UserWarning, match="Missing values"):
        machine.fit(matrix(rows), [_truth(row) for row in rows])
    model = lucid.convert(machine, ORIGIN, "identity", len(rows))
    assert len(model.pairs) == 4
    unseen = _rows(300, seed=2)
    unseen += [{"x": 99.0, "n": -1.0, "who": "nobody", "what": "30"}, {}]
    cuts = model.shapes[0].bins.cuts
    unseen += [{"x": cut, "n": 0.5} for cut in cuts]
    told = [model.predict(row) for row in unseen]
    assert told == pytest.approx(machine.predict(matrix(unseen)).tolist(), abs=1e-9)
    importances = dict(zip(machine.term_names_, machine.term_importances(), strict=True))
    ours = {name.replace(" × ", " & "): value for name, value in model.importance()}
    assert ours == pytest.approx(importances)


@pytest.fixture(scope="module")
def fitted() -> Additive:
    rows = [row for row in _rows(500, seed=3) if "x" in row]
    return lucid.fit(rows, [_truth(row) for row in rows], ORIGIN, interactions=3, alone="x")


def test_a_fit_learns_the_shapes(fitted: Additive) -> None:
    rows = _rows(200, seed=4)
    off = [abs(fitted.predict(row) - _truth(row)) for row in rows if "x" in row]
    assert float(np.mean(off)) < 0.8  # the targets' own mean deviation is above 2
    assert fitted.importance()[0][0] == "x"


def test_the_lonely_feature_is_in_no_pair(fitted: Additive) -> None:
    assert len(fitted.pairs) == 3
    assert not any("x" in pair.name.split(" × ") for pair in fitted.pairs)


def test_with_the_link_log_predictions_multiply() -> None:
    rows: list[dict[str, float | str]] = [{"gpus": float(n % 4)} for n in range(80)]
    model = lucid.fit(rows, [10.0 ** float(row["gpus"]) for row in rows], ORIGIN, link="log")
    assert model.predict({"gpus": 3.0}) == pytest.approx(1000, rel=0.2)


def test_pooling_adjacent_violators() -> None:
    """By hand: 3 and 1 (twice as many rows) pool to 5/3; missing and unseen stay."""
    shape = Shape(
        Bins("gpus", cuts=(1.0, 2.0, 3.0)), (9.0, 0.0, 3.0, 1.0, 4.0, -9.0), (1, 5, 1, 2, 5, 0)
    )
    other = Shape(Bins("hour", cuts=(1.0,)), (0.0, 2.0, 1.0, 0.0), (0, 1, 1, 0))
    model = Additive("", "", 0.0, (shape, other), (), "log", 1, 0.0)
    bent = monotone(model, "gpus")
    assert bent.shapes[0].scores == pytest.approx((9.0, 0.0, 5 / 3, 5 / 3, 4.0, -9.0))
    assert bent.shapes[1] is other


def test_a_shape_that_falls_is_made_to_fall() -> None:
    shape = Shape(Bins("gpus", cuts=(1.0, 2.0)), (0.0, 4.0, 1.0, 2.0, 0.0), (0, 1, 1, 1, 0))
    bent = monotone(Additive("", "", 0.0, (shape,), (), "log", 1, 0.0), "gpus")
    assert bent.shapes[0].scores == (0.0, 4.0, 1.5, 1.5, 0.0)


def test_names_that_are_much_alike_share_an_exemplar() -> None:
    names = [f"resnet50-seed{n}" for n in range(6)] + [f"bert_large_lr0.{n}" for n in range(6)]
    found = exemplars(names)
    assert len(found) == 2
    assert {name[:4] for name in found} == {"resn", "bert"}


def test_few_names_are_their_own_exemplars() -> None:
    assert exemplars([]) == ()
    assert exemplars(["b", "a", "b"]) == ("a", "b")


def _job(at: float, seconds: float, **more: object) -> dict[str, object]:
    job = {"user": "ann", "name": "n", "group": "g", "gpus": 1}
    return {**job, "submitted_at": at, "duration_s": seconds, **more}


def test_only_what_had_ended_is_known_of_a_job() -> None:
    jobs = [
        _job(0, 10),
        _job(5, 40),  # the first one still runs
        _job(20, 1, user="bob", group=""),  # whose first job it is
        _job(30, 1),
        _job(50, 1, ended_at=500),  # it waited
        _job(60, 1),
    ]
    known = lucid.duration_table(jobs, ())
    assert [row.get("user_mean_s") for row in known] == [None, None, None, 10, 17, 17]
    assert [row.get("group_last_s") for row in known] == [None, None, None, 10, 40, 40]


def test_durations_are_learned_by_name_and_user_and_grow_with_gpus() -> None:
    random = Random(5)
    jobs = []
    for n in range(400):
        name, seconds = random.choice((("resnet", 100.0), ("bertlike", 5000.0)))
        gpus = random.choice((1, 2, 4, 8))
        spread = random.uniform(0.9, 1.1)
        name = f"{name}-{random.randrange(3)}"
        jobs.append(_job(n * 600.0, seconds * gpus * spread, name=name, gpus=gpus, group=""))
    model = lucid.train_duration(jobs, "nowhere", at=7.0)
    assert (model.rows, model.source, model.trained_at) == (400, "nowhere", 7.0)
    assert dict(model.errors)["R² of the logarithm"] > 0.9
    assert len(exemplars_of(model)) < 6
    gpus = next(shape for shape in model.shapes if shape.name == "gpus").scores[1:-1]
    assert list(gpus) == sorted(gpus)
    short, long = (
        model.predict({"name": next(e for e in exemplars_of(model) if e[0] == first), "gpus": 2.0})
        for first in "rb"
    )
    assert log(long / short) == pytest.approx(log(50), abs=0.7)


def test_throughput_that_repeats_by_the_hour_is_learned() -> None:
    random = Random(6)
    counts = [
        (round(20 * (n // 6 % 24 in (9, 10, 11)) + random.random()), random.randrange(3))
        for n in range(8 * 144)
    ]
    model = lucid.train_traffic(counts, 0.0, "jobs", "nowhere", at=7.0)
    errors = dict(model.errors)
    assert errors["MAE"] < 0.4 * errors["MAE of the last count known"]
    table = lucid.traffic_table(counts, 0.0)
    assert model.predict(table[10 * 6]) > 15
    assert model.predict(table[20 * 6]) < 3


def test_a_row_of_traffic_knows_only_what_was_over_when_it_was_foretold() -> None:
    counts = [(n, 0) for n in range(2000)]
    row = lucid.traffic_table(counts, 0.0)[1500]
    assert (row["hour"], row["minute"]) == (1500 // 6 % 24, 0)
    assert row["jobs_1h_mean"] == np.mean([1490, 1491, 1492, 1493, 1494, 1495])
    changed = [*counts[:1496], *[(0, 0)] * 504]
    assert lucid.traffic_table(changed, 0.0)[1500] == row
