"""From events to a report's numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import inf
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the tracer runs in a Python that has PyTorch")

from estimators.tracer.allocator import DEFAULTS, MIB, Options
from estimators.tracer.convolution import BLAS, Conv, autotuning, images, workspace
from estimators.tracer.explanation import _Filmed
from estimators.tracer.recording import Recording
from estimators.tracer.replay import LAYOUTS, Figures, Replays, figures, replay
from estimators.tracer.report import CONTEXT_MIB, PARTS, Report

SQUARE = Conv(
    backward=False,
    input=(8, 64, 56, 56),
    weight=(64, 64, 3, 3),
    output=(8, 64, 56, 56),
    groups=1,
    itemsize=4,
    stride=(1, 1),
    dilation=(1, 1),
    transposed=False,
)
IN = OUT = 8 * 64 * 56 * 56 * 4
WEIGHT = 64 * 64 * 9 * 4


def recording(*events: tuple[Any, Any], **more: Any) -> Recording:
    given: dict[str, Any] = {"convs": [], "kinds": {}, "benchmark": False, "memory": inf, **more}
    return Recording(list(events), **given)


def run(*events: tuple[Any, Any], chosen: Options = DEFAULTS, **more: Any) -> Figures:
    return figures(recording(*events, **more), chosen)


def test_floor_is_the_most_that_was_live_and_reserved_what_segments_took() -> None:
    found = run((1, 30 * MIB), (2, 20 * MIB), (1, -1), (3, 31 * MIB))
    assert found.floor == 51 * MIB
    assert found.reserved == (30 + 20 + 32) * MIB  # 31 does not fit where 30 was


def test_parts_are_those_at_the_peak_and_add_up_to_it() -> None:
    found = run(
        (1, 40 * MIB),
        (2, 40 * MIB),
        ("blas", "forward"),
        (3, 30 * MIB),
        (2, -1),
        (4, 20 * MIB),
        kinds={1: "parameters", 2: "gradients", 3: "optimizer"},
    )
    assert found.parts == {
        "parameters": 40 * MIB,
        "gradients": 40 * MIB,
        "optimizer": 30 * MIB,
        "activations": 0,  # 4 came later, into the gradients' place
        "workspace": BLAS,
        "cached": 20 * MIB - BLAS,
    }
    assert sum(found.parts.values()) == found.reserved == 130 * MIB


def test_the_peak_is_when_most_is_in_use_not_when_the_last_segment_was_made() -> None:
    """A step's temporary is made when the activations are gone, but fits none of their blocks."""
    found = run(
        (1, 10 * MIB),
        (2, 30 * MIB),
        (3, 30 * MIB),
        (2, -1),
        (3, -1),
        ("mark", "optimizer"),
        (4, 40 * MIB),
        ("mark", "stepped"),
        kinds={1: "parameters"},
    )
    assert found.reserved == 110 * MIB
    assert (found.parts["activations"], found.parts["cached"]) == (60 * MIB, 40 * MIB)
    assert found.parts["optimizer"] == 0


def test_what_a_step_takes_for_a_while_is_the_optimizers() -> None:
    step = (("mark", "optimizer"), (2, 40 * MIB), (2, -1), ("mark", "stepped"), (3, 20 * MIB))
    found = run((1, 10 * MIB), *step)
    assert (found.parts["optimizer"], found.parts["activations"]) == (40 * MIB, 10 * MIB)


@given(st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=40), st.booleans())
def test_parts_always_add_up(sizes: list[int], expandable: bool) -> None:
    events = [(n, size) for n, size in enumerate(sizes)]
    events += [(n, -1) for n in range(0, len(sizes), 2)]
    events += [(1000 + n, size) for n, size in enumerate(reversed(sizes))]
    kinds = {n: PARTS[n % 4] for n in range(len(sizes))}
    found = run(*events, kinds=kinds, chosen=Options(expandable=expandable))
    assert set(found.parts) == set(PARTS)
    assert all(value >= 0 for value in found.parts.values())
    assert sum(found.parts.values()) == found.reserved >= found.floor


def test_the_allocators_options_count() -> None:
    events = [(1, 30 * MIB), (1, -1), (2, 41 * MIB), (2, -1), (3, 52 * MIB)]
    assert run(*events).reserved == (30 + 42 + 52) * MIB
    assert run(*events, chosen=Options(expandable=True)).reserved == 60 * MIB


def test_each_thread_that_multiplies_keeps_a_workspace() -> None:
    one = run(("blas", "forward"))
    both = run(("blas", "forward"), ("blas", "backward"))
    assert (one.parts["workspace"], both.parts["workspace"]) == (BLAS, 2 * BLAS)
    assert both.floor == 0  # nothing that the program asked for


def test_faketensor_ends_with_the_first_backward_pass() -> None:
    first = [(1, 10 * MIB), ("mark", "forward"), (2, 20 * MIB), (2, -1), ("mark", "backward")]
    rest = [(3, 50 * MIB), ("mark", "step1"), ("mark", "backward")]
    assert run(*first, *rest).faketensor == 30 * MIB
    assert run(*first, *rest).floor == 60 * MIB
    assert run((1, 10 * MIB)).faketensor == 10 * MIB  # there was none


def test_emptying_the_cache_makes_room() -> None:
    events = [(1, 30 * MIB), (1, -1), (2, 50 * MIB)]
    assert run(*events).reserved == 80 * MIB
    assert run(events[0], events[1], ("empty", 0), events[2]).reserved == 50 * MIB


def test_a_convolutions_workspace_is_there_while_it_runs() -> None:
    found = run(("conv", 0), (1, 4 * MIB), convs=(SQUARE,))
    assert found.parts["workspace"] == workspace(SQUARE) > 0
    assert found.floor == 4 * MIB


def test_benchmark_mode_empties_the_cache_once_per_new_convolution() -> None:
    events = [(1, 200 * MIB), (1, -1), ("conv", 0), (2, 90 * MIB), (2, -1), ("conv", 1)]
    events += [(3, 200 * MIB)]
    twice = (SQUARE, SQUARE)
    plain = run(*events, convs=twice)
    tuned = run(*events, convs=twice, benchmark=True)
    assert (plain.reserved, plain.autotune) == (200 * MIB, 0)
    own = -(-workspace(SQUARE) // (2 * MIB)) * 2 * MIB
    assert tuned.reserved == own + (90 + 200) * MIB  # kept: the second time it is not searched


def test_a_search_counts_at_the_time_when_it_is() -> None:
    """It takes what is free then: of the cache, and of the GPU. At the peak it is over."""
    search = -(-autotuning(SQUARE) // (2 * MIB)) * 2 * MIB
    events = [(1, 200 * MIB), ("conv", 0)]
    early = run(*events, convs=(SQUARE,), benchmark=True)
    assert early.reserved + early.autotune == 200 * MIB + search
    assert run(*events, (2, 300 * MIB), convs=(SQUARE,), benchmark=True).autotune == 0
    assert run((1, 200 * MIB), (1, -1), *events[1:], convs=(SQUARE,), benchmark=True).autotune == 0
    needed = (200 + CONTEXT_MIB) * MIB + search
    assert run(*events, convs=(SQUARE,), benchmark=True, memory=needed) == early
    cached = [(1, 40 * MIB), (2, 160 * MIB), (1, -1), ("conv", 0)]
    for missing, room in ((0, True), (4 * MIB, False)):
        found = run(*cached, convs=(SQUARE,), benchmark=True, memory=needed - missing)
        assert (found.autotune > 0) == room, "what is cached is not free"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, IN + OUT + 2 * WEIGHT),
        ({"backward": True}, int(1.75 * (IN + OUT + WEIGHT)) + WEIGHT),
        ({"weight": (64, 64, 1, 1)}, 0),
        ({"input": (8, 3, 56, 56), "weight": (64, 3, 3, 3)}, 0),
        ({"groups": 64, "weight": (64, 1, 3, 3)}, (IN + OUT) // 4),
        ({"groups": 2, "weight": (64, 32, 3, 3)}, (IN + OUT + WEIGHT // 2) // 4 + WEIGHT // 2),
    ],
    ids=["3x3", "backward", "1x1", "image", "depthwise", "narrow groups"],
)
def test_workspaces(change: dict[str, Any], expected: int) -> None:
    assert workspace(SQUARE._replace(**change)) == expected


def test_half_precision_halves_them() -> None:
    assert workspace(SQUARE._replace(itemsize=2)) * 2 == workspace(SQUARE)
    assert autotuning(SQUARE._replace(itemsize=2)) * 2 == autotuning(SQUARE)


def test_a_search_pads_narrow_planes_to_squares() -> None:
    """As in mobilevitv2, whose runs took up to 26 GiB more than was traced."""
    shapes = (128, 64, 4, 256), (129, 64, 1, 1), (128, 129, 4, 256)
    conv = SQUARE._replace(**dict(zip(("input", "weight", "output"), shapes, strict=True)))
    assert autotuning(conv) == (128 * (64 + 129) + 64 * 129) * 256 * 129 * 8
    assert autotuning(conv, free=8 << 30) == 0
    assert autotuning(conv._replace(stride=(2, 2))) == 0


def test_autotuning_transforms_tiles_for_many_pairs_of_channels() -> None:
    """As an H100 did with ResNet-50: 5,032 MiB for 512 × 2,048 channels at batch 64."""
    conv = SQUARE._replace(input=(64, 512, 7, 7), weight=(2048, 512, 1, 1), output=(64, 2048, 7, 7))
    assert autotuning(conv) == (64 * (512 + 2048) + 512 * 2048) * 32 * 17 * 8 == 5032 * MIB
    fewer = conv._replace(weight=(1024, 512, 1, 1), output=(64, 1024, 7, 7))
    assert autotuning(fewer) == (64 * (512 + 1024) + 512 * 1024) * 8 * 5 * 8, "planes alone"
    point = conv._replace(input=(64, 512, 1, 1), output=(64, 2048, 1, 1))
    assert autotuning(point) == 0, "there is nothing to transform"


def test_padded_images_are_kept() -> None:
    one = SQUARE._replace(input=(8, 3, 224, 224), weight=(64, 3, 3, 3))
    small, grey = one._replace(input=(2, 3, 224, 224)), one._replace(input=(2, 1, 28, 28))
    found = run(("conv", 0), ("conv", 1), ("conv", 0), ("conv", 2), convs=(small, one, grey))
    assert found.parts["workspace"] == images(one) == 8 * 8 * 224 * 224 * 4, "the largest, once"


def test_safe_is_above_what_is_expected_and_grows_with_it() -> None:
    report = _traced()
    more = replace(report, reserved=report.reserved + 1000 * MIB)
    assert report.safe > report.reserved
    assert more.safe - report.safe == 1040 * MIB
    assert replace(report, most=report.reserved + 9000 * MIB).safe == report.reserved + 9000 * MIB
    assert replace(report, autotune=300 * MIB).safe == report.safe
    assert replace(report, autotune=9000 * MIB).safe == report.reserved + 9000 * MIB


def test_a_report_says_under_which_options_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,backend:native")
    report = _traced()
    assert report.notes == ("assumed", "the allocator's option backend:native is not modelled")
    assert report.reserved == 60 * MIB
    assert (report.batch, report.steps, report.seconds) == (8, 2, 0.5)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert _traced().reserved == 124 * MIB


def _traced() -> Report:
    recorder = _recorder([(1, 30 * MIB), (1, -1), (2, 41 * MIB), (2, -1), (3, 52 * MIB)])
    recorder.notes = ["assumed"]
    layers: Any = SimpleNamespace(batch=8, layers=())
    return replay(recorder, layers, 2, 0.5)


def test_the_daemon_can_ask_without_pytorch() -> None:
    program = "import sys, carmad.estimates.asking; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_an_explanation_knows_how_much_memory_the_gpu_has() -> None:
    """cudnn.benchmark takes no more than that, in the picture as in the figures."""
    small = (64 + CONTEXT_MIB) * MIB
    seen = recording((1, 8 * MIB), ("conv", 0), convs=[SQUARE], benchmark=True, memory=small)
    found = figures(seen)
    assert found.autotune < figures(seen._replace(memory=inf)).autotune
    recorder: Any = SimpleNamespace(events=seen.events, recording=seen)
    assert _Filmed(recorder, DEFAULTS, 0).figures() == found


def test_where_segments_lie_decides_over_what_is_reserved() -> None:
    """Of two free blocks of one size, the lower one is taken: if the smaller segment lies below,
    the larger one stays whole, and has room for what comes then."""
    large, small = 60 * MIB, 30 * MIB
    events = [
        *((1, large), (2, small), (3, small)),  # three segments
        *((1, -1), (4, small)),  # the large one is split: 4 takes half of it
        *((2, -1), (5, small)),  # two free blocks of 30 MiB: beside 4, and where 2 was
        *((4, -1), (6, large)),  # fits if 5 is not beside where 4 was
    ]
    replays = _replays(events)
    reserved = [_in_layout(events, layout).reserved for layout in LAYOUTS]
    assert set(reserved) == {120 * MIB, 180 * MIB}
    assert replays.most == 180 * MIB
    assert replays.typical.reserved == median(reserved)


def test_the_figures_are_of_the_median_layout() -> None:
    sizes = (12, 30, 14, 22, 12, 40, 18, 26)
    events = [(n, size * MIB) for n, size in enumerate(sizes)]
    events += [(n, -1) for n in (1, 3, 5)]
    events += [(n + 10, size * MIB) for n, size in enumerate((12, 12, 14, 20, 31))]
    replays = _replays(events)
    middle = replays.typical
    assert sum(middle.parts.values()) == middle.reserved
    assert middle == _in_layout(events, replays.layout)
    film = _Filmed(_recorder(events), DEFAULTS, replays.layout)
    assert film.figures() == middle


def _replays(events: list[tuple[Any, Any]]) -> Replays:
    """That have taken the events in two goes."""
    recorder = _recorder(events[:3])
    replays = Replays(recorder)
    replays.follow()
    recorder.events.extend(events[3:])
    replays.follow()
    return replays


def _in_layout(events: list[tuple[Any, Any]], layout: int) -> Figures:
    return figures(recording(*events), layout=layout)


def _recorder(events: list[tuple[Any, Any]]) -> Any:
    return SimpleNamespace(events=events, recording=recording(*events))
