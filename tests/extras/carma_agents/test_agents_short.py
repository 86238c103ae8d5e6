"""Answers that are made short enough."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from carma_agents.short import as_json, fit

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**6) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=9), inner),
)


def test_what_has_room_stays_as_it_is() -> None:
    answer = {"jobs": [{"id": 1, "name": "é"}], "more": 0}
    assert fit(answer, len(as_json(answer))) is answer


def test_of_a_long_list_the_first_are_kept_and_the_rest_counted() -> None:
    answer = {"gpus": ["a", "b"], "jobs": [{"id": n} for n in range(1000)], "more": 7}
    short = fit(answer, 500)
    kept = len(short["jobs"])
    assert 30 < kept < 60
    assert short == answer | {"jobs": answer["jobs"][:kept], "left_out": {"jobs": 1000 - kept}}


def test_a_single_item_that_is_too_long_is_shortened_itself() -> None:
    short = fit({"jobs": [{"id": 1, "words": ["x"] * 1000, "note": "y" * 1000}]}, 600)
    (job,) = short["jobs"]
    assert job["id"] == 1
    assert len(job["words"]) + job["left_out"]["words"] == 1000
    assert job["note"].endswith("more characters)")
    assert job["note"].startswith("yyy")


def test_large_lists_share_the_room() -> None:
    short = fit({"a": [1] * 1000, "b": [2] * 1000}, 400)
    assert abs(len(short["a"]) - len(short["b"])) <= 1


@given(st.dictionaries(st.text(max_size=9), VALUES), st.integers(0, 400))
def test_the_answer_has_room_and_is_json(answer: dict[str, Any], room: int) -> None:
    short = fit(answer, room)
    if short is not None:
        assert len(as_json(short)) <= room
        assert json.loads(as_json(short)) == short
