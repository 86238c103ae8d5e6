"""The risk analysis of the CARMA paper, 3.3."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.config import Monitor, Risk
from carmad.core.gpus.gpu import GpuSample, Score, Window, ema, mean, percentile, risk

fractions = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def seconds(values):
    """One sample a second."""
    return [(value, 1.0) for value in values]


def fed(values, monitor=None, **others):
    window = Window(monitor or Monitor(), Risk())
    for at, value in enumerate(values):
        window.add(GpuSample("g", float(at), sm_active=value, **others))
    return window


def test_nothing_is_known_without_readings():
    score = fed([]).recent.score
    assert (score.sm_active, score.sm_mean, score.samples) == (None, 0.0, 0)


def test_the_weighted_sum_by_hand():
    values = [0.0, 1.0, 1.0, 1.0, 1.0]  # mean .8, median 1, p95 1; α = 2/3 for a span of 2
    last = 0.0
    for _ in range(4):
        last += (2 / 3) * (1.0 - last)
    levels = seconds(values)
    assert risk(levels, Monitor(window_s=2), Risk()) == pytest.approx(
        0.2 * 0.8 + 0.3 + 0.3 + 0.2 * last
    )


@given(fractions)
def test_the_weights_add_up_so_risk_stays_between_the_extremes(values):
    found = risk(seconds(values), Monitor(), Risk())
    assert min(values) - 1e-9 <= found <= max(values) + 1e-9


@given(fractions)
def test_percentile_and_ema_agree_with_their_definitions(values):
    ordered = seconds(sorted(values))
    assert percentile(ordered, 0.5, 1.0) == pytest.approx(statistics.median(values))
    if len(values) > 1:
        expected = statistics.quantiles(values, n=20, method="inclusive")[-1]
        assert percentile(ordered, 0.95, 1.0) == pytest.approx(expected)
    assert ema(seconds([values[0]] * 5), Monitor()) == pytest.approx(values[0])


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_long_sample_counts_as_that_many_short_ones(runs):
    """This lets a simulator send a sample only when something changes."""
    watched = Monitor(stale_s=math.inf)
    long, short = Window(watched, Risk()), Window(watched, Risk())
    at = 0
    for value, length in [(0.5, 1), *runs]:
        for second in range(at + 1, at + length + 1):
            short.add(GpuSample("g", float(second), sm_active=value, dram_active=value / 2))
        at += length
        long.add(GpuSample("g", float(at), sm_active=value, dram_active=value / 2))
    for metric in ("sm_active", "dram_active", "sm_mean"):
        assert getattr(long.recent.score, metric) == pytest.approx(
            getattr(short.recent.score, metric)
        )


def test_a_sample_that_began_before_the_window_counts_for_what_is_in_it():
    window = Window(Monitor(window_s=10, stale_s=100), Risk())
    window.add(GpuSample("g", 0.0, sm_active=0.0))
    window.add(GpuSample("g", 50.0, sm_active=1.0))
    window.add(GpuSample("g", 55.0, sm_active=0.0))
    assert window.recent.score.sm_mean == pytest.approx(0.5)


def test_samples_at_one_instant_divide_by_nothing():
    window = Window(Monitor(), Risk())
    window.add(GpuSample("g", 0.0, sm_active=0.5))
    window.add(GpuSample("g", 0.0, sm_active=0.9))
    assert window.recent.score.sm_mean == pytest.approx(0.5)  # the second stood for no time


def test_of_levels_at_one_instant_the_mean_is_the_last():
    assert mean([(0.2, 0.0), (0.4, 0.0), (0.9, 0.0)]) == 0.9


def test_a_sample_shorter_than_a_period_counts_for_what_it_is():
    levels = [(0.0, 0.5), (1.0, 0.5), (2.0, 1.0)]  # the last two have their middles at 0.75 and 1.5
    assert percentile(levels, 0.5, 1.0) == pytest.approx(1 + (1.0 - 0.75) / (1.5 - 0.75))


def test_only_the_window_counts():
    window = fed([1.0] * 30 + [0.0] * 30)
    assert window.recent.score.sm_active == 0.0
    assert window.recent.score.samples == 30


def test_utilisation_stands_in_for_smact_and_says_so():
    window = Window(Monitor(), Risk())
    window.add(GpuSample("g", 0.0, utilization=0.9))
    score = window.recent.score
    assert (score.sm_source, score.sm_active) == ("utilization", pytest.approx(0.9))
    assert score.sm_occupancy is None and score.dram_active is None


def test_nothing_known_is_no_risk_and_no_zero():
    window = Window(Monitor(), Risk())
    window.add(GpuSample("g", 0.0))
    assert window.recent.score == Score(samples=1)
    assert not window.recent.score.risky(Risk())


@pytest.mark.parametrize(
    ("sm", "occupancy", "dram", "risky"),
    [
        (0.80, 0.45, 0.0, True),
        (0.80, 0.0, 0.40, True),
        (0.80, 0.44, 0.39, False),
        (0.79, 1.0, 1.0, False),
        (0.95, None, 0.1, False),
        (0.95, None, None, True),  # SMACT decides alone
    ],
)
def test_the_threshold_test(sm, occupancy, dram, risky):
    assert Score(sm, occupancy, dram, "sm_active").risky(Risk()) is risky


def test_a_gpu_is_busy_from_a_utilisation_on_if_one_is_set():
    limits = Risk(utilization=0.9)
    assert [Score(utilization=u).is_busy(limits) for u in (None, 0.89, 0.9, 1.0)] == [
        *(False, False),
        *(True, True),
    ]
    assert not Score(utilization=1.0).is_busy(Risk())


def test_a_gap_in_the_readings_starts_the_watch_anew():
    window = Window(Monitor(stale_s=5), Risk())
    for at in (0.0, 1.0, 2.0):
        window.add(GpuSample("g", at))
    assert window.since == 0.0
    window.add(GpuSample("g", 60.0))
    assert window.since == 60.0
