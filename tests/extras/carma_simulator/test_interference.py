"""The interference models: their predictions, and properties that all must have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_simulator.conformance import InterferenceRules
from carma_simulator.experiment import Experiment, Load, Outcome
from carma_simulator.hardware import parse
from carma_simulator.interference import (
    Additive,
    Conserving,
    Interference,
    Measured,
    Unslowed,
    make,
    speeds_by_mode,
)
from carma_simulator.metrics import figures
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load as load_trace
from carma_testing import Check, check_rules, checks_of
from carmad.config import Collocation, Settings
from carmad.core.jobs.attempt import Mode
from carmad.errors import CarmaError
from carmad.gpu.card import Card, paths
from carmad.gpu.emulated import create

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public pairs are not there")

SHARED = (Mode.STREAMS, Mode.MPS)
PAIRS = """model1,batchsize1,speed1,model2,batchsize2,speed2,mode
ResNet-18,32,0.8,LSTM,64,0.6,
resnet18,32,0.6,lstm,64,0.8,streams
VGG,32,1.3,PPO,64,0.9,mps
VGG,32,0.7,VGG,32,0.5,mps
"""


def load(sm: float, dram: float = 0.0, model: str = "", batch_size: int = 0) -> Load:
    return Load(model=model, batch_size=batch_size, sm_active=sm, dram_active=dram)


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS)
    return Measured(path, Additive())


loads = st.builds(load, st.floats(0, 1), st.floats(0, 1))
neighbourhoods = st.lists(loads, min_size=2, max_size=6)

NOT_CONSERVED = "an upper bound: it makes work out of nothing"


@pytest.mark.parametrize(
    "check",
    [
        check
        for model in (Additive(), Conserving())
        for check in checks_of(InterferenceRules(model))
    ],
    ids=str,
)
def test_the_models_keep_the_rules(check: Check) -> None:
    check()


def test_without_slowdown_work_is_made_out_of_nothing() -> None:
    names = ("work_is_conserved", "work_is_conserved_in_mixed_company")
    check_rules(InterferenceRules(Unslowed()), dict.fromkeys(names, NOT_CONSERVED))


class Regression:
    """Slowdown = 1 + own · (c · others + (1 - c) · excess over a GPU), as the default once was."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        others = [sum(load.sm_active for load in loads) - own.sm_active for own in loads]
        costs = [0.687 * sm + 0.313 * max(0.0, sm - 1) for sm in others]
        pairs = zip(loads, costs, strict=True)
        return tuple(1 / (1 + own.sm_active * cost) for own, cost in pairs)


def test_a_regression_on_pairs_that_knows_no_capacity_is_found_out() -> None:
    busy = [load(share / 10) for share in range(1, 11)]
    checks = {check.name: check for check in checks_of(InterferenceRules(Regression(), busy))}
    with pytest.raises(AssertionError, match=r"keep 1\.\d\d times the GPU's sm_active busy"):
        checks["work_is_conserved"]()


@pytest.mark.parametrize(("name", "mps"), [("additive", True), ("conserving", False)])
def test_sharing_keeps_the_sm_busy_seconds_of_a_trace(name: str, mps: bool) -> None:
    """Those of the same jobs, each with a GPU to itself."""
    settings = Settings(collocation=Collocation(mps=mps, mps_scope="node"))
    trace, cluster = load_trace("generate:carma-1?seed=5&tasks=60"), parse("3xA100-40GB")
    shared, alone = (
        simulate(Experiment(trace, cluster, replace(settings, policy=policy), "oracle", name))
        for policy in ("first_fit", "exclusive")
    )
    assert figures(shared).shared > 10 and not figures(shared).oom_crashes
    assert busy_s(shared) == pytest.approx(busy_s(alone), rel=0.02)
    assert figures(shared).sm_kept == pytest.approx(1.0, abs=1e-6)


def test_a_run_says_how_much_work_its_model_makes_out_of_nothing() -> None:
    trace, cluster = load_trace("generate:carma-1?seed=5&tasks=60"), parse("3xA100-40GB")
    settings = Settings(policy="first_fit")
    outcome = simulate(Experiment(trace, cluster, settings, "oracle", "none"))
    assert (figures(outcome).sm_kept or 1) < 0.98


def busy_s(outcome: Outcome) -> float:
    return sum(gpu.sm_active_s for gpu in outcome.gpus)


class TestByMode:
    """An MPS server takes turns with the processes outside it."""

    model = Conserving({Mode.MPS: 0.5, Mode.STREAMS: 1.0})

    def test_one_mode_is_the_model_s_own(self) -> None:
        pair = [load(0.8), load(0.6)]
        for mode in Mode:
            assert speeds_by_mode(self.model, pair, [mode] * 2) == self.model.speeds(pair, mode)
        assert speeds_by_mode(self.model, [], []) == ()

    def test_one_client_beside_one_outside_is_a_pair_that_takes_turns(self) -> None:
        pair = [load(0.8), load(0.6)]
        found = speeds_by_mode(self.model, pair, [Mode.MPS, Mode.STREAMS])
        assert found == self.model.speeds(pair, Mode.STREAMS)

    def test_two_clients_are_one_load_to_the_process_outside(self) -> None:
        """Clients of 0.5 each at 1 / (1 + 0.5 · 0.5 · 0.5) = 1/1.125: a load of 1/1.125."""
        found = speeds_by_mode(
            self.model, [load(0.5), load(0.6), load(0.5)], [Mode.MPS, Mode.STREAMS, Mode.MPS]
        )
        server = 1 / (1 + 0.6 / 1.125)
        assert found == pytest.approx([server / 1.125, server, server / 1.125])

    @given(neighbours=neighbourhoods, data=st.data(), shift=st.integers(1, 5))
    def test_order_does_not_matter(
        self, neighbours: list[Load], data: st.DataObject, shift: int
    ) -> None:
        modes = data.draw(st.lists(st.sampled_from(SHARED), min_size=6, max_size=6))
        modes, at = modes[: len(neighbours)], shift % len(neighbours)
        speeds = speeds_by_mode(self.model, neighbours, modes)
        turned = speeds_by_mode(
            self.model, neighbours[at:] + neighbours[:at], modes[at:] + modes[:at]
        )
        assert turned == pytest.approx(speeds[at:] + speeds[:at])
        assert all(0 < speed <= 1 for speed in speeds)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4))
def test_emulated_cards_slow_their_jobs_by_the_simulators_law(
    demands: list[tuple[float, float]],
) -> None:
    with TemporaryDirectory() as folder:
        create(Path(folder), "A100-40GB")
        (path,) = paths(folder)
        cards = [Card(path) for _ in demands]
        for card, (sm, dram) in zip(cards, demands, strict=True):
            card.attach()
            card.launch(sm, 0.1, dram)
        loads = [Load(sm_active=sm, dram_active=dram) for sm, dram in demands]
        for mode in SHARED:
            speeds = Conserving().speeds(loads, mode)
            assert [card.rate() for card in cards] == pytest.approx(speeds)
        reading = cards[0].read()
        busy = math.fsum(speed * load.sm_active for speed, load in zip(speeds, loads, strict=True))
        assert reading.sm_active == pytest.approx(min(1.0, busy))
        for card in cards:
            card.close()


def test_none_slows_nobody() -> None:
    assert Unslowed().speeds([load(1, 1), load(1, 1)], Mode.STREAMS) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("neighbours", "speed"),
    [
        ([load(0.4, 0.3), load(0.6, 0.7)], 1.0),
        ([load(0.7, 0.2), load(0.6, 0.3)], 1 / 1.3),
        ([load(0.3, 0.8), load(0.3, 0.6)], 1 / 1.4),
        ([load(0.5), load(0.5), load(1.0)], 1 / 2.0),
    ],
)
@pytest.mark.parametrize("mode", SHARED)
def test_additive_slows_all_by_what_exceeds_one(
    neighbours: Sequence[Load], speed: float, mode: Mode
) -> None:
    assert Additive().speeds(neighbours, mode) == pytest.approx([speed] * len(neighbours))


class TestConserving:
    model = Conserving({Mode.MPS: 0.5, Mode.STREAMS: 1.0})

    def test_a_pair_that_leaves_room_slows_by_the_regression(self) -> None:
        # 1 + 0.5 · 0.4 · 0.6 = 1.12, the same for the other; 0.4 + 0.6 is no more than a GPU
        speeds = self.model.speeds([load(0.4, 0.5), load(0.6, 0.4)], Mode.MPS)
        assert speeds == pytest.approx([1 / 1.12, 1 / 1.12])

    def test_the_modes_have_their_own_coefficients(self) -> None:
        speeds = self.model.speeds([load(0.4, 0.5), load(0.6, 0.4)], Mode.STREAMS)
        assert speeds == pytest.approx([1 / 1.24, 1 / 1.24])

    @pytest.mark.parametrize("mode", SHARED)
    def test_a_full_gpu_is_shared_by_demand(self, mode: Mode) -> None:
        neighbours = [load(1.0), load(0.8), load(0.9)]
        assert Conserving().speeds(neighbours, mode) == pytest.approx([1 / 2.7] * 3)

    def test_a_job_that_asks_much_beside_little_is_slowed_by_the_regression(self) -> None:
        # 1 + 1.0 · 0.9 · 0.2 = 1.18; 0.9 + 0.2 = 1.1
        speeds = self.model.speeds([load(0.9), load(0.2)], Mode.STREAMS)
        assert speeds == pytest.approx([1 / 1.18, 1 / 1.18])

    @pytest.mark.parametrize("mode", SHARED)
    def test_however_many_jobs_do_the_work_of_one_gpu(self, mode: Mode) -> None:
        for count in (2, 3, 5, 20):
            speeds = Conserving().speeds([load(0.7)] * count, mode)
            assert sum(0.7 * speed for speed in speeds) == pytest.approx(1.0)


class TestMeasured:
    def test_rows_of_one_pair_are_averaged(self, measured: Measured) -> None:
        pair = [load(0.9, model="ResNet18", batch_size=32), load(0.9, model="lstm", batch_size=64)]
        assert measured.speeds(pair, Mode.STREAMS) == pytest.approx([0.7, 0.7])

    def test_from_either_side_and_never_faster_than_alone(self, measured: Measured) -> None:
        pair = [load(0.9, model="ppo", batch_size=64), load(0.9, model="vgg", batch_size=32)]
        assert measured.speeds(pair, Mode.MPS) == pytest.approx([0.9, 1.0])

    def test_equal_jobs_have_equal_speeds(self, measured: Measured) -> None:
        pair = [load(0.9, model="vgg", batch_size=32)] * 2
        assert measured.speeds(pair, Mode.MPS) == pytest.approx([0.6, 0.6])

    @pytest.mark.parametrize(
        ("sizes", "mode"), [((32, 64), Mode.MPS), ((32, 32), Mode.STREAMS), ((0, 0), Mode.STREAMS)]
    )
    def test_other_pairs_fall_back(
        self, measured: Measured, sizes: tuple[int, int], mode: Mode
    ) -> None:
        names = ("resnet18", "lstm")
        pair = [load(1.0, model=m, batch_size=s) for m, s in zip(names, sizes, strict=True)]
        assert measured.speeds(pair, mode) == pytest.approx([0.5, 0.5])

    def test_three_fall_back(self, measured: Measured) -> None:
        known = load(0.5, model="vgg", batch_size=32)
        assert measured.speeds([known] * 3, Mode.MPS) == pytest.approx([1 / 1.5] * 3)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("a,b\n1,2\n", " lacks the columns: model1, batchsize1, speed1, model2, "),
            (PAIRS + "VGG,32,0,PPO,64,0.9,mps\n", ", line 6: has a speed of 0, "),
            (PAIRS + "VGG,x,1,PPO,64,0.9,mps\n", ", line 6: batchsize1 is 'x', "),
            (PAIRS + "VGG,32,1,PPO,64,0.9,mig\n", ", line 6: has the mode 'mig', "),
            (PAIRS + "VGG,32\n", ", line 6: has 2 cells, "),
        ],
    )
    def test_what_is_no_such_file_is_said_so(self, tmp_path: Path, text: str, told: str) -> None:
        path = tmp_path / "pairs.csv"
        path.write_text(text)
        with pytest.raises(CarmaError) as caught:
            make(f"measured:{path}")
        assert caught.value.message.startswith(f"{path}{told}")

    def test_how_many_of_a_traces_models_have_pairs(self, measured: Measured) -> None:
        """The file has VGG at 32 and PPO at 64 under MPS, ResNet-18 and LSTM on streams."""
        asked = [load(0.9, model="vgg", batch_size=size) for size in (32, 64)]
        asked += [load(0.9, model=model, batch_size=64) for model in ("PPO", "ppo", "lstm", "")]
        assert measured.coverage(asked, Mode.MPS) == (2, 4)
        assert measured.coverage(asked, Mode.STREAMS) == (1, 4)

    @needs_data
    def test_it_reads_lucids_own_file(self) -> None:
        path = DATA / "lucid" / "colocated_pairs_rtx3090.csv"
        model = make(f"measured:{path}")
        pair = [
            load(0.9, model="ResNet18", batch_size=128),
            load(0.9, model="MobileNetV3", batch_size=32),
        ]
        # the mean over mixed precision on and off, two by two
        assert model.speeds(pair, Mode.STREAMS) == pytest.approx(
            [(0.89 + 0.878 + 1.003 + 0.864) / 4, (0.729 + 1.046 + 0.921 + 0.979) / 4]
        )


class TestMake:
    @pytest.mark.parametrize(
        ("name", "kind"), [("none", Unslowed), ("additive", Additive), ("conserving", Conserving)]
    )
    def test_by_name(self, name: str, kind: type[Interference]) -> None:
        assert type(make(name)) is kind

    @pytest.mark.parametrize("name", ["", "learned", "measured", "measured:", "additive:x"])
    def test_another_name_is_told_what_there_is(self, name: str) -> None:
        with pytest.raises(CarmaError) as caught:
            make(name)
        assert "none, additive, conserving, conserving:C" in caught.value.hint

    def test_a_coefficient(self) -> None:
        load = Load(sm_active=0.9)
        speeds = make("conserving:2.06").speeds((load, load), Mode.STREAMS)
        assert speeds == pytest.approx([1 / (1 + 2.06 * 0.81)] * 2)
        for text in ("x", "-1", "nan", "inf"):
            with pytest.raises(CarmaError, match="is no coefficient of interference"):
                make(f"conserving:{text}")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(CarmaError, match=r"nowhere\.csv: No such file or directory$"):
            make(f"measured:{tmp_path / 'nowhere.csv'}")


class TestCoefficients:
    shipped = json.loads(
        files("carma_simulator").joinpath("coefficients/interference.json").read_text()
    )

    @pytest.mark.parametrize("mode", SHARED)
    def test_they_say_where_they_are_from(self, mode: Mode) -> None:
        fit = self.shipped["modes"][mode]
        assert 0 <= fit["sm"] <= 1
        assert fit["data"] and fit["licence"] and fit["sides_of_pairs"] > 0
        assert self.shipped["command"] == "python -m lab.simulator.interference"
