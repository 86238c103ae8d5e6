"""What models predict, why, and that they survive serialisation."""

from __future__ import annotations

from math import exp, nan

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from carmad.learning.features import (
    AHEAD,
    INTERVAL_S,
    LOOK_BACK,
    bucket,
    distance,
    exemplars_of,
    foretold,
    traffic_features,
)
from carmad.learning.features import duration_features as of_job
from carmad.learning.models import Additive, Bins, Model, Node, Pair, Shape, Tree

TREE = Tree(
    about="what",
    source="nowhere",
    features=("busy", "amp"),
    classes=("tiny", "medium", "jumbo"),
    nodes=(
        Node((4, 3, 3), feature=0, threshold=0.5, left=1, right=2),
        Node((4, 1, 0)),
        Node((0, 2, 3), feature=1, threshold=0.5, left=3, right=4),
        Node((0, 0, 3)),
        Node((0, 2, 0)),
    ),
    rows=10,
    trained_at=0.0,
)
HOUR = Shape(Bins("hour", cuts=(6.0, 18.0)), (0.1, -1.0, 2.0, 0.5, 9.0), (0, 6, 12, 6, 0))
USER = Shape(Bins("user", categories=("ann", "bob")), (0.0, 0.3, -0.3, 0.7), (0, 3, 3, 0))
PAIR = Pair(
    (Bins("hour", cuts=(12.0,)), Bins("user", categories=("ann", "bob"))),
    tuple(tuple(10.0 * row + column for column in range(4)) for row in range(4)),
    importance=0.2,
)
ADDITIVE = Additive("what", "nowhere", 5.0, (HOUR, USER), (PAIR,), "identity", 24, 0.0)


def test_a_tree_predicts_the_class_of_the_leaf() -> None:
    assert TREE.predict({"busy": 0.5, "amp": 0.0}) == "tiny"  # on the threshold: left
    assert TREE.predict({"busy": 0.51, "amp": 0.0}) == "jumbo"
    assert TREE.predict({"busy": 0.51, "amp": 1.0}) == "medium"


def test_where_a_value_is_unknown_a_tree_goes_with_most_rows() -> None:
    assert TREE.predict({"busy": 0.9}) == "jumbo"  # three rows without AMP, two with
    assert TREE.predict({"busy": 0.9, "amp": nan}) == "jumbo"


def test_a_tree_as_text() -> None:
    assert TREE.text().splitlines() == [
        "busy ≤ 0.5",
        "  tiny (4 of 5)",
        "busy > 0.5",
        "  amp ≤ 0.5",
        "    jumbo (3 of 3)",
        "  amp > 0.5",
        "    medium (2 of 2)",
    ]


def test_a_trees_importance_is_the_impurity_it_removes() -> None:
    # by hand: the root 10·0.66 - 5·0.32 - 5·0.48 = 2.6, the other 5·0.48 - 0 - 0 = 2.4
    assert dict(TREE.importance()) == pytest.approx({"busy": 2.6 / 5, "amp": 2.4 / 5})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"hour": 5.0, "user": "ann"}, 5 - 1.0 + 0.3 + 11),
        ({"hour": 6.0, "user": "bob"}, 5 + 2.0 - 0.3 + 12),  # on a cut: above it
        ({"hour": 23.0, "user": "eve"}, 5 + 0.5 + 0.7 + 23),  # unseen
        ({"user": "ann"}, 5 + 0.1 + 0.3 + 1),  # missing
        ({"hour": nan}, 5 + 0.1 + 0.0 + 0),
    ],
)
def test_an_additive_model_adds_up(values: dict[str, float | str], expected: float) -> None:
    assert ADDITIVE.predict(values) == pytest.approx(expected)
    contributed = sum(score for _, score in ADDITIVE.contributions(values))
    assert ADDITIVE.intercept + contributed == pytest.approx(expected)


def test_with_the_link_log_the_sum_is_a_logarithm() -> None:
    model = Additive("", "", 1.0, (USER,), (), "log", 6, 0.0)
    assert model.predict({"user": "ann"}) == pytest.approx(exp(1.3))
    assert model.contributions({"user": "ann"}) == (("user", 0.3),)


def test_contributions_and_importance_come_greatest_first() -> None:
    assert [n for n, _ in ADDITIVE.contributions({"hour": 5.0, "user": "ann"})] == [
        "hour × user",
        "hour",
        "user",
    ]
    # (6·1 + 12·2 + 6·0.5) / 24, and 0.3 for both users
    assert ADDITIVE.importance() == (
        ("hour", pytest.approx(1.375)),
        ("user", pytest.approx(0.3)),
        ("hour × user", 0.2),
    )


def test_a_shape_as_a_listing_without_bins_that_nothing_fell_into() -> None:
    assert HOUR.rows() == (("< 6", -1.0), ("6 to 18", 2.0), ("≥ 18", 0.5))
    assert USER.rows() == (("ann", 0.3), ("bob", -0.3))


@pytest.mark.parametrize("model", [TREE, ADDITIVE])
def test_models_survive_json(model: Model) -> None:
    adapter: TypeAdapter[Model] = TypeAdapter(Model)
    assert adapter.validate_json(to_json(model)) == model


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("a", "a", 0), ("ab", "ba", 2)],
)
def test_levenshtein(one: str, other: str, expected: int) -> None:
    assert distance(one, other) == distance(other, one) == expected


def test_a_name_falls_to_the_nearest_exemplar() -> None:
    exemplars = ("bert-base", "resnet50")
    assert bucket("resnet50", exemplars) == "resnet50"
    assert bucket("resnet50-seed3", exemplars) == "resnet50"
    assert bucket("bert-large", exemplars) == "bert-base"
    assert bucket("anything", ()) == "anything"


def test_traffic_looks_back_from_the_interval_foretold() -> None:
    """Counts that encode their interval show which ones were used."""
    last = 2000
    counts = [(n, 10 * n) for n in range(last + 1)]
    found = traffic_features(counts, (last + 1.5) * INTERVAL_S)
    target = last + AHEAD
    assert foretold((last + 1.5) * INTERVAL_S) == target * INTERVAL_S
    assert found["jobs_1h_ago"] == target - 6
    assert found["gpus_1d_ago"] == 10 * (target - 144)
    assert found["jobs_1w_ago"] == target - 1008
    assert found["jobs_3h_soft"] == target - 18  # the neighbours are one more and one less
    assert found["jobs_1h_mean"] == found["jobs_1h_median"] == last - 2.5
    assert found["jobs_trend"] == 6  # an hour's mean over that of the hour before
    assert found["jobs_1h_deviation"] == pytest.approx((35 / 12) ** 0.5)


def test_soft_sums_weigh_the_middle_most() -> None:
    counts = [(0, 0)] * 100
    counts[-2] = (8, 0)  # an hour before what is foretold
    assert traffic_features(counts, 0.0)["jobs_1h_soft"] == 4.0
    counts[-2], counts[-1] = (0, 0), (8, 0)
    assert traffic_features(counts, 0.0)["jobs_1h_soft"] == 2.0


def test_nothing_younger_than_the_last_interval_is_needed_nor_older_than_a_week() -> None:
    counts = [(n % 7, n % 5) for n in range(3000)]
    assert traffic_features(counts[-LOOK_BACK:], 0.0) == traffic_features(counts, 0.0)
    assert traffic_features(counts[-LOOK_BACK + 1 :], 0.0) != traffic_features(counts, 0.0)


def test_a_short_past_leaves_features_out() -> None:
    assert set(traffic_features([], 0.0)) == {"hour", "minute", "weekday", "day"}
    hour = traffic_features([(1, 1)] * 6, 0.0)
    assert "jobs_1h_mean" in hour
    assert not {"jobs_3h_mean", "jobs_1d_ago", "jobs_trend"} & set(hour)


def test_the_calendar_is_that_of_the_interval_foretold() -> None:
    friday = 1_600_473_600.0  # 2020-09-19 00:00 UTC, a Saturday
    found = traffic_features([], friday - 3000)  # 23:10 on the Friday before; foretold: 23:50
    assert (found["hour"], found["minute"], found["weekday"], found["day"]) == (23, 50, 4, 18)


def test_what_is_not_known_of_a_job_is_left_out() -> None:
    found = of_job("ann", "train-1", 2, 0.0, of_user=(10.0, 30.0))
    assert found == {
        "user": "ann",
        "name": "train-1",
        "gpus": 2.0,
        "hour": 0.0,
        "weekday": 3.0,
        "day": 1.0,
        "user_mean_s": 20.0,
        "user_last_s": 30.0,
    }
    more = of_job("ann", "x", 2, 0.0, of_group=(5.0,), profile={"gpu_utilization": 0.4})
    assert more["group_mean_s"] == more["group_last_s"] == 5.0
    assert more["gpu_utilization"] == 0.4
    assert "peak_mib" not in more


def test_the_exemplars_are_in_the_model() -> None:
    name = Shape(Bins("name", categories=("a", "b")), (0, 0, 0, 0), (0, 1, 1, 0))
    assert exemplars_of(Additive("", "", 0.0, (USER, name), (), "log", 2, 0.0)) == ("a", "b")
    assert exemplars_of(ADDITIVE) == ()
