"""Castor's mathematics: step time, theorem 1, algorithm 2, interference model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest
import xgboost
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import to_json

from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.findings import StepTime
from carmad.learning.models import Boosted, Model
from carmad.learning.training.interference import Beside, consensus, convert, mae, train
from lab.castor.theorem import best_start, sharing_benefit
from policies.castor.pairing import (
    FIXED_SHARE,
    StepModel,
    accumulations,
    at_once,
    best_split,
    ends,
    later,
)

seconds = st.floats(1e-2, 1e6)
ratios = st.floats(1, 10)
models = st.builds(
    StepModel, st.floats(1e-4, 10), st.floats(1e-6, 1), st.floats(0, 10), st.floats(1, 20)
)
batches = st.sampled_from([1, 6, 32, 48, 256])


class TestStep:
    def test_equations_1_to_3(self) -> None:
        model = StepModel(alpha_comp_s=0.1, beta_comp_s=0.01, comm_s=0.3, delta=2.0)
        assert model.compute_s(30) == pytest.approx(0.4)
        assert model.step_s(30) == pytest.approx(0.5)  # the root of 0.4² and 0.3²
        assert model.step_s(30, 3) == pytest.approx(2 * 0.2 + math.sqrt(0.2**2 + 0.3**2))
        assert model.slowdown(30, 3) == pytest.approx(model.step_s(30, 3) / 0.5)

    def test_delta_1_adds_up_and_a_large_one_hides_the_shorter(self) -> None:
        assert StepModel(0.1, 0.01, 0.3, 1.0).step_s(10) == pytest.approx(0.5)
        assert StepModel(0.1, 0.01, 0.3, 500.0).step_s(10) == pytest.approx(0.3)
        assert StepModel(1e-9, 0, 1e-9, 100.0).step_s(10) == pytest.approx(1e-9, rel=0.01)

    @given(model=models, batch=batches)
    def test_the_more_passes_the_slower(self, model: StepModel, batch: int) -> None:
        slowdowns = [model.slowdown(batch, passes) for passes in accumulations(batch)]
        assert slowdowns[0] == 1
        assert all(one <= next_ * (1 + 1e-9) for one, next_ in pairwise(slowdowns))

    def test_what_is_assumed_keeps_the_step_and_repeats_the_fixed_share(self) -> None:
        model = StepModel.assume(0.8, 64)
        assert model.step_s(64) == pytest.approx(0.8)
        assert model.slowdown(64, 4) == pytest.approx(1 + 3 * FIXED_SHARE)


class TestTheorem1:
    def test_both_cases_by_hand(self) -> None:
        # B needs 20 s beside A, which gets 10 s done in them and has 90 s alone left.
        assert ends(100, 10, (2.0, 2.0), 0) == (110, 20)
        # A needs 20 s beside B, which gets 10 s done in them and has 90 s alone left.
        assert ends(10, 100, (2.0, 2.0), 0) == (20, 110)
        assert ends(100, 10, (2.0, 2.0), 30) == (110, 50)
        assert ends(100, 10, (2.0, 2.0), 100) == (100, 110)

    @given(a=seconds, b=seconds, xi_a=ratios, xi_b=ratios)
    def test_the_closed_forms_of_the_paper(
        self, a: float, b: float, xi_a: float, xi_b: float
    ) -> None:
        """Equations 19 and 23, in the paper's own terms, where each of them applies."""
        hat_a, hat_b = a * xi_a, b * xi_b

        def mean(kappa: float) -> float:
            return sum(ends(a, b, (xi_a, xi_b), kappa)) / 2

        if hat_a >= hat_b:
            assert mean(0) == pytest.approx(hat_b + a / 2 - hat_b / (2 * xi_a))
        else:
            slope = (2 * xi_b + xi_a - 2 * xi_a * xi_b) / (2 * xi_b)
            for kappa in (0, a / 3, a):
                want = slope * kappa + (1 - 1 / (2 * xi_b)) * hat_a + b / 2
                assert mean(kappa) == pytest.approx(want)
            assume(abs(slope) > 1e-6)
            assert best_start(a, b, (xi_a, xi_b)).share == (slope > 0)

    @given(a=seconds, b=seconds, xi_a=ratios, xi_b=ratios)
    def test_the_optimum_is_at_an_end(self, a: float, b: float, xi_a: float, xi_b: float) -> None:
        """Brute force over kappa, and the kink, where an inner optimum would be."""
        start = best_start(a, b, (xi_a, xi_b))
        kink = max(0.0, a - b * xi_b / xi_a)
        for kappa in (*(a * n / 200 for n in range(201)), kink):
            mean = sum(ends(a, b, (xi_a, xi_b), kappa)) / 2
            assert start.pair_jct_s <= mean * (1 + 1e-9)
        best = 0.0 if start.share else a
        assert (start.running_jct_s, start.new_jct_s) == pytest.approx(
            ends(a, b, (xi_a, xi_b), best)
        )

    def test_the_sign_of_the_second_case_does_not_decide_the_first(self) -> None:
        """Its slope is negative here, yet a short job beside a long one ends soon: it shares."""
        xi = 3.0
        assert 2 * xi + xi - 2 * xi * xi < 0
        assert best_start(1000, 1, (xi, xi)).share
        assert not best_start(1, 1000, (xi, xi)).share

    def test_between_equals_it_waits(self) -> None:
        ratios = (2.0, 1.0)  # case 2's slope is 0
        start = best_start(10, 100, ratios)
        assert not start.share
        assert start.pair_jct_s == at_once(10, 100, ratios).pair_jct_s

    def test_the_sharing_benefit(self) -> None:
        assert sharing_benefit(110, 20) == 5.5
        assert sharing_benefit(110, best_start(100, 10, (2.0, 2.0)).new_jct_s) == 5.5
        assert sharing_benefit(110, later(100, 10).new_jct_s) == 1


class TestAlgorithm2:
    STEPS = StepModel(0.1, 0.01)  # of 32 samples: 0.42 s, in 2 passes 0.52, in 4 0.72

    def test_sub_batches_divide_the_batch_evenly_down_to_one_sample(self) -> None:
        assert [32 // n for n in accumulations(32)] == [32, 16, 8, 4, 2, 1]
        assert [48 // n for n in accumulations(48)] == [48, 24, 12, 6, 3]
        assert list(accumulations(7)) == list(accumulations(1)) == [1]
        assert list(accumulations(0)) == []

    @given(a=seconds, b=seconds, xi=st.tuples(ratios, ratios), limit=st.sampled_from([1, 2, 4, 64]))
    def test_with_one_pair_of_ratios_it_is_the_largest_that_fits(
        self, a: float, b: float, xi: tuple[float, float], limit: int
    ) -> None:
        found = best_split(a, b, 32, self.STEPS, lambda n: xi, lambda n: n >= limit)
        if limit == 64:
            assert found == later(a, b)
        else:
            slowdown = self.STEPS.slowdown(32, limit)
            alternatives = (later(a, b), at_once(a, b, xi, slowdown, limit))
            assert found == min(alternatives, key=lambda start: start.pair_jct_s)

    def test_a_sub_batch_of_one_is_tried_too(self) -> None:
        found = best_split(1e6, 1, 4, self.STEPS, lambda n: (1.1, 1.1), lambda n: n == 4)
        assert found.share and found.accumulation == 4
        assert found.new_jct_s == pytest.approx(1.1 * self.STEPS.slowdown(4, 4))

    def test_smaller_parts_are_taken_where_they_disturb_less(self) -> None:
        found = best_split(
            100, 100, 32, self.STEPS, lambda n: (2.0, 2.0) if n == 1 else (1.1, 1.1), lambda n: True
        )
        assert found.accumulation == 2

    def test_a_start_in_parts_must_beat_waiting_with_the_whole_batch(self) -> None:
        """Compared with waiting in 32 passes, as in the paper, sharing would seem better."""
        slowdown = self.STEPS.slowdown(32, 32)
        assert (
            at_once(10, 10, (1.1, 1.1), slowdown).pair_jct_s < later(10, 10 * slowdown).pair_jct_s
        )
        found = best_split(10, 10, 32, self.STEPS, lambda n: (1.1, 1.1), lambda n: n == 32)
        assert not found.share and found.accumulation == 1 and found.new_jct_s == 20


# What XGBoost predicts, the same model converted, and the rows, of which some lack values.
Trained = tuple[Sequence[float], Boosted, list[dict[str, float]]]


class TestBoosted:
    @pytest.fixture
    def trained(self) -> Trained:
        random = np.random.default_rng(0)
        table = random.random((400, 3)).round(2)  # so that thresholds are values of rows
        target = table[:, 0] + np.sin(5 * table[:, 1]) * table[:, 2]
        table[random.random(table.shape) < 0.1] = np.nan
        matrix = xgboost.DMatrix(table, label=target)
        booster = xgboost.train({"max_depth": 5, "eta": 0.3, "nthread": 1}, matrix, 40)
        model = Boosted("y", "made up", ("a", "b", "c"), *convert(booster), 400, 0.0)
        rows = [dict(zip("abc", map(float, row), strict=True)) for row in table]
        return booster.predict(matrix).tolist(), model, rows

    def test_it_predicts_what_xgboost_does(self, trained: Trained) -> None:
        predictions, model, rows = trained
        assert [model.predict(row) for row in rows] == pytest.approx(predictions, abs=1e-5)

    def test_absent_is_missing_too(self, trained: Trained) -> None:
        _, model, rows = trained
        row = next(row for row in rows if math.isnan(row["b"]))
        assert model.predict({"a": row["a"], "c": row["c"]}) == model.predict(row)

    def test_importance_is_of_what_matters(self) -> None:
        table = np.random.default_rng(0).random((200, 3))
        matrix = xgboost.DMatrix(table, label=table[:, 1] * 5 + table[:, 2])
        booster = xgboost.train({"max_depth": 2, "nthread": 1}, matrix, 10)
        model = Boosted("y", "", ("a", "b", "c"), *convert(booster), 200, 0.0)
        shares = dict(model.importance())
        assert list(shares) == ["b", "c", "a"]
        gains = booster.get_score(importance_type="total_gain")
        assert shares["b"] == pytest.approx(gains["f1"] / sum(gains.values()), rel=1e-4)
        assert Boosted("y", "", ("a",), 1.0, (), 0, 0.0).importance() == ()

    def test_it_survives_json(self, trained: Trained) -> None:
        _, model, _ = trained
        assert TypeAdapter(Model).validate_json(to_json(model)) == model


class TestInterference:
    @pytest.fixture
    def rows(self) -> list[Beside]:
        """Pairs that slow each other down by their demand beyond the whole GPU."""
        levels = [n / 11 for n in range(1, 12)]
        return [
            Beside(
                {
                    "own.sm_active.mean": own,
                    "other.sm_active.mean": other,
                    "own.dram_active.mean": own / 2,
                    "other.dram_active.mean": other / 2,
                },
                max(0.97, own + other),
                f"{min(own, other)} {max(own, other)}",
            )
            for own in levels
            for other in levels
        ]

    def test_it_foretells_pairs_that_it_has_not_seen(self, rows: list[Beside]) -> None:
        held_out = {row.pair for row in rows[5::7]}
        model = train([row for row in rows if row.pair not in held_out], "made up")
        assert mae(model, [row for row in rows if row.pair in held_out]) < 0.1
        assert model.source == "made up" and model.rows < len(rows)

    def test_who_reports_nonsense_is_outvoted(self, rows: list[Beside]) -> None:
        """A third of all reports."""
        lies = [replace(row, ratio=20.0, pair=f"of a liar {row.pair}") for row in rows[2::3]]
        honest = [rows[::3], rows[1::3]]
        assert mae(train([*honest[0], *honest[1], *lies]), rows) > 3
        by_user = {"ada": honest[0], "bob": honest[1], "eve": lies}
        told = [replace(row, user=user) for user, its in by_user.items() for row in its]
        assert mae(train(consensus(told)), rows) < 0.3

    def test_who_alone_reports_of_a_pair_is_believed(self, rows: list[Beside]) -> None:
        told = [replace(rows[0], user="ada"), replace(rows[-1], user="eve")]
        assert consensus(told) == told

    def test_below_1_is_noise(self, rows: list[Beside]) -> None:
        idle = next(row for row in rows if row.ratio < 1)
        assert train(rows).predict(idle.values) == pytest.approx(1, abs=0.01)

    def test_a_missing_indicator_is_made_up_for_by_the_others(self, rows: list[Beside]) -> None:
        def without(part: str) -> list[Beside]:
            return [
                Beside({k: v for k, v in row.values.items() if part not in k}, row.ratio, row.pair)
                for row in rows
            ]

        model = train(rows)
        assert mae(model, without("dram_active")) < 0.05
        assert mae(model, without("sm_active")) < 0.05
        mean = sum(row.target for row in rows) / len(rows)
        spread = math.sqrt(sum((row.target - mean) ** 2 for row in rows) / len(rows))
        assert mae(model, without("other.")) < 0.8 * spread  # nothing is known of the neighbour
        assert model.predict({}) == pytest.approx(mean, abs=spread)


class TestShipped:
    MODEL = TypeAdapter(Boosted).validate_json(
        files("policies.castor").joinpath("interference.json").read_bytes()
    )

    def test_it_says_where_it_is_from(self) -> None:
        assert "Lucid" in self.MODEL.source and "non-commercial" in self.MODEL.source
        assert self.MODEL.errors and self.MODEL.rows and not self.MODEL.trained_at

    def test_it_asks_for_what_profiles_tell(self) -> None:
        sample = GpuSample(GpuId("GPU-0"), 0.0, utilization=0.5, memory_utilization=0.5)
        told = {f"{name}.mean" for name, _ in sample.indicators()} | {"memory.share"}
        assert set(self.MODEL.features) == {f"{who}.{x}" for who in ("own", "other") for x in told}

    def test_busy_jobs_slow_each_other_and_idle_ones_do_not(self) -> None:
        def ratio(level: float) -> float:
            return self.MODEL.predict(dict.fromkeys(self.MODEL.features, level))

        assert ratio(0.02) == pytest.approx(1.0, abs=0.1)
        assert 1.3 < ratio(0.95) < 2.5


def test_what_jobs_told_of_their_steps_becomes_a_model() -> None:
    true = StepModel(0.1, 0.01)
    told = [StepTime(parts, true.step_s(64, parts)) for parts in (1, 4)]
    found = StepModel.fit(told, 64)
    assert found is not None
    assert found.alpha_comp_s == pytest.approx(0.1)
    assert found.beta_comp_s == pytest.approx(0.01)
    later = StepModel.fit([StepTime(2, true.step_s(64, 2)), told[1]], 64)
    assert later is not None and later.step_s(64) == pytest.approx(true.step_s(64))
    assert StepModel.fit((), 64) is None
    assert StepModel.fit(told[:1], 64) is None
    faster = StepModel.fit([StepTime(1, 0.5), StepTime(2, 0.4)], 64)  # noise: no part is for free
    assert faster is not None and faster.slowdown(64, 2) == 1.0
    nothing = StepModel.fit([StepTime(1, 5e-324), StepTime(4, 5e-324)], 64)
    assert nothing is not None and nothing.slowdown(64, 4) == 1.0
    absurd = StepModel.fit([StepTime(1, 0.1), StepTime(2, 0.9)], 64)
    assert absurd is not None and absurd.beta_comp_s == 0.0


def test_step_times_on_two_kinds_of_gpu_are_not_mixed() -> None:
    """A whole batch on a slow GPU, and parts on a fast one, would say that parts cost nothing."""
    true = StepModel(0.1, 0.01)
    slow = StepTime(1, 10 * true.step_s(64), "slow")
    fast = [StepTime(parts, true.step_s(64, parts), "fast") for parts in (2, 4)]
    assert StepModel.fit((slow, fast[1]), 64) is None
    found = StepModel.fit((slow, *fast), 64)
    assert found is not None and found.alpha_comp_s == pytest.approx(0.1)
