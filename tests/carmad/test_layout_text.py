"""Layouts and stage times as people write them."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from carmad import layout_text
from carmad.api.requests import StageIn, StageTimesIn
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Stage
from carmad.layout_text import OF_STAGE, OF_TIMES, format_fields


def test_a_stage_is_read() -> None:
    text = "2x forward=20ms backward=0.04s in=12M out=1.5G weights=512KiB tensor=2 tensor-data=8M"
    assert Stage(**layout_text.stage(text + " experts=1m exposed=0.4 microbatches=8")) == Stage(
        2, 0.02, 0.04, 12.0, 1536.0, 0.5, 2, 8.0, 1.0, 0.4, 8
    )
    assert Stage(**layout_text.stage("forward=350us")) == Stage(1, 0.00035)
    assert Stage(**layout_text.stage("")) == Stage()


def test_stage_times_are_read() -> None:
    text = "load=10ms forward=37ms backward=76ms communication=98ms sync=backward"
    times = StageTimes(0.01, 0.037, 0.076, 0.098, "backward")
    assert StageTimes(**layout_text.stage_times(text)) == times
    kind = layout_text.stage_times("forward=1s backward=2s gpu=NVIDIA A100-SXM4-40GB")
    assert StageTimes(**kind) == StageTimes(0.0, 1.0, 2.0, gpu="NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("forward=20", "not a valid stage time; try 20ms"),
        ("forward=20min", "not a valid stage time"),
        ("in=12", "not a valid size; try 12M"),
        ("tensor=0", "not a valid number for tensor"),
        ("exposed=1.5", "not a valid share for exposed; try 0.4"),
        ("microbatches=0", "not a valid number for microbatches"),
        ("0x forward=1s", "not a valid number for its replicas"),
        ("2 forward=1s", "unknown '2'; use NAME=VALUE, where NAME is forward, backward"),
        ("fwd=1s", "unknown 'fwd=1s'"),
        ("in=1M in=2M", "in= is given twice"),
    ],
)
def test_what_is_no_stage(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        layout_text.stage(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("load=1s forward=2s", "lacks backward="),
        ("forward=1s backward=2s sync=never", "backward or forward"),
        ("load=0s forward=0s backward=0ms sync=backward", "cannot all be 0"),
        ("forward=1s backward=2s gpu=", "needs the name of a GPU"),
        ("forward=1s backward=2s weights=1M", "unknown 'weights=1m'"),
    ],
)
def test_what_are_no_stage_times(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        layout_text.stage_times(text)


@given(st.text() | st.text("forwadbcknilx=0123456789.mskgMG ", max_size=30))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    for read in (layout_text.stage, layout_text.stage_times):
        try:
            read(text)
        except ValueError as error:
            assert str(error)


amounts = st.floats(0, 1e8)


counts = st.integers(1, 1024)
batches = st.integers(0, 9999)


@given(st.builds(Stage, counts, *[amounts] * 5, counts, amounts, amounts, st.floats(0, 1), batches))
def test_a_stage_that_is_written_is_read_back(stage: Stage) -> None:
    assert Stage(**layout_text.stage(format_fields(asdict(stage), OF_STAGE))) == stage


@given(st.builds(StageTimes, *[amounts] * 4, sync=st.sampled_from(["backward", "forward"])))
def test_stage_times_that_are_written_are_read_back(times: StageTimes) -> None:
    assume(times.load_s + times.forward_s + times.backward_s + times.communication_s)
    assert StageTimes(**layout_text.stage_times(format_fields(asdict(times), OF_TIMES))) == times


def test_every_field_has_a_word_and_a_place_in_a_request() -> None:
    of_stage = {field.name for field in fields(Stage)}
    of_times = {field.name for field in fields(StageTimes)}
    assert {*OF_STAGE.values(), "replicas"} == of_stage == set(StageIn.model_fields)
    assert {*OF_TIMES.values(), "gpu"} == of_times == set(StageTimesIn.model_fields)
