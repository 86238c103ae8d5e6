"""Durations of recurring jobs: the forest, the table made of it, and its predictors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from statistics import fmean
from typing import Any

import pytest

from carma_testing import a_job, a_spec
from carmad.config import Settings
from carmad.core.jobs.history import History
from carmad.errors import CarmaError
from carmad.learning.files import decode_model
from carmad.learning.models import Lookup, Model
from carmad.store import codec
from cli.commands.models import model_list
from estimators import duration
from tests.carmad.learning.test_trained_shown import plain

pytest.importorskip("sklearn", reason="training needs carma-gpu[policies]")

from carmad.learning.training import forest

TABLE = Lookup("seconds", "a test", {"ada's": 50.0}, 3, 1e9, (("median error (s)", 2.0),))


def row(n: int, group: str, seconds: float, user: str = "ada") -> dict[str, Any]:
    return {"group": group, "user": user, "duration_s": seconds, "submitted_at": float(n)}


def columns(runs: Mapping[str, list[float]]) -> tuple[list[str], list[str], list[float]]:
    pairs = [(name, each) for name, found in runs.items() for each in found]
    return [name for name, _ in pairs], ["ada"] * len(pairs), [each for _, each in pairs]


# -- what is learned


def test_of_each_group_it_says_about_the_mean() -> None:
    random = Random(1)
    runs = {f"{n:012x}": [(n + 1) * random.uniform(90, 110) for _ in range(40)] for n in range(8)}
    told = forest.grow(*columns(runs))
    assert told.keys() == runs.keys()
    for name, seconds in runs.items():
        assert told[name] == pytest.approx(fmean(seconds), rel=0.03)
    assert told == forest.grow(*columns(runs)), "drawn alike each time"


def test_groups_stay_apart_whose_hashes_are_near() -> None:
    """As 32-bit floats these would be equal."""
    near = {"ffffffffffe0": [100.0] * 20, "ffffffffffff": [900.0] * 20}
    told = forest.grow(*columns(near))
    assert told["ffffffffffe0"] < 200 and told["ffffffffffff"] > 800


def test_nobodys_jobs_move_what_is_told_of_anothers() -> None:
    """In every third tree, a group that ran once would get its neighbour's duration."""
    runs = {"b": [100.0], "c": [90.0, 120.0], **{f"a{n}": [1e6] for n in range(20)}, "d": [1e6]}
    assert forest.grow(*columns(runs))["b"] > 10_000, "as the paper has it"
    told = forest.within_own(*columns(runs))
    assert told["b"] == 100.0
    assert 90.0 <= told["c"] <= 120.0


def test_what_it_is_compared_with() -> None:
    runs = {"a": [1.0, 2.0, 9.0], "b": [5.0]}
    assert forest.means(*columns(runs)) == {"a": 4.0, "b": 5.0}
    assert forest.medians(*columns(runs)) == {"a": 2.0, "b": 5.0}


def test_errors_are_of_jobs_that_ran_before() -> None:
    found = forest.measure({"a": 100.0}, ["a", "a", "a", "new"], [110.0, 112.0, 60.0, 9e9])
    assert found == forest.Errors(
        mean_s=pytest.approx(62 / 3), median_s=12, right=1 / 3, known=0.75
    )
    assert forest.measure({}, ["new"], [1.0]) is None


def test_the_newest_fifth_judges() -> None:
    """Its durations have changed; the order of the rows does not matter."""
    old = [row(n, f"g{n % 4}", 100.0) for n in range(80)]
    new = [row(100 + n, f"g{n % 4}", 140.0) for n in range(20)]
    nobody = [row(300, "", 1e9)]
    model = forest.train([*new, *nobody, *old], "a test", 5.0)
    errors = dict(model.errors)
    assert errors["median error (s)"] == errors["mean error (s)"] == pytest.approx(40)
    assert (
        errors["group's median: median error (s)"] == errors["group's mean: mean error (s)"] == 40
    )
    assert (errors["within 10%"], errors["had run before"]) == (0.0, 1.0)
    assert (model.rows, model.trained_at, set(model.seconds)) == (
        100,
        5.0,
        {"g0", "g1", "g2", "g3"},
    )
    assert all(100 < seconds < 140 for seconds in model.seconds.values()), "from all rows"
    assert forest.since(model, new) == ("median error (s)", pytest.approx(32, abs=3))


@pytest.mark.parametrize("rows", [[], [row(n, f"g{n}", 1.0) for n in range(10)]])
def test_where_nothing_recurs_nothing_is_learned(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(CarmaError, match="no job has run again"):
        forest.train(rows, "a test", 0.0)


# -- the table


def test_it_is_kept_as_json() -> None:
    text = codec.encode(TABLE)
    assert json.loads(text)["seconds"] == {"ada's": 50.0}
    assert decode_model(text) == TABLE
    assert (TABLE.predict("ada's"), TABLE.predict("bob's")) == (50.0, 0.0)


@pytest.mark.parametrize(("days", "often"), [(7.0, "7 days"), (0.04, "58 min")])
def test_how_often_is_told_in_hours_too(days: float, often: str) -> None:
    training = {
        "every_days": days,
        "lacking": "",
        "last_at": None,
        "under_way": False,
        "last_words": [],
    }
    answer: Any = {"models": [], "training": training}
    assert f"trained every {often}, last" in plain(model_list(answer))


# -- who predicts


def asked(predictor: Any, models: Mapping[str, Model], past: tuple[float, ...] = ()) -> Any:
    job = a_job(group="ada's")
    known = History()
    for seconds in past:
        known.by_group.add("ada's", seconds)
    return predictor.predict(job, known, models, 0.0)


def test_the_forest_goes_before_the_history_and_what_neither_knows_is_short() -> None:
    predictor = duration.forest(Settings())
    table = {"forest": TABLE}
    for models, past, seconds, source in (
        (table, (7.0,), 50.0, "forest"),
        ({}, (7.0, 9.0, 90.0), 9.0, "history"),
        ({"forest": Lookup("", "", {"bob's": 1.0}, 1, 0.0)}, (7.0,), 7.0, "history"),
        ({}, (), 0.0, "forest"),
    ):
        said = asked(predictor, models, past)
        assert (said.seconds, said.source) == (seconds, source)
        assert said.notes


def test_the_owner_knows_best() -> None:
    sure = a_job(group="ada's", spec=a_spec(expected_s=3.0))
    known = History()
    known.by_group.add("ada's", 7.0)
    said = duration.forest(Settings()).predict(sure, known, {"forest": TABLE}, 0.0)
    assert said is not None and (said.seconds, said.source) == (3.0, "declared")
