"""The interference models: their predictions, and properties that all must have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.core.types import Mode
from carmad.errors import CarmaError
from carmad.sim.experiment import Load
from carmad.sim.interference import (
    Additive,
    Interference,
    Learned,
    Measured,
    Unslowed,
    make,
    speeds_by_mode,
)

DATA = Path(__file__).parents[2] / "shared" / "data"
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


MODELS = [Unslowed(), Additive(), Learned()]
loads = st.builds(load, st.floats(0, 1), st.floats(0, 1))
neighbourhoods = st.lists(loads, min_size=2, max_size=6)
modes = st.sampled_from(SHARED)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
class TestEvery:
    def test_nobody_and_somebody_alone(self, model: Interference) -> None:
        assert model.speeds((), Mode.MPS) == ()
        assert model.speeds([load(1, 1)], Mode.STREAMS) == (1.0,)

    @pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.MIG])
    def test_no_neighbour_reaches_into_a_partition(self, model: Interference, mode: Mode) -> None:
        assert model.speeds([load(1, 1)] * 3, mode) == (1.0, 1.0, 1.0)

    @given(neighbours=neighbourhoods, mode=modes, shift=st.integers(1, 5))
    def test_order_does_not_matter(
        self, model: Interference, neighbours: list[Load], mode: Mode, shift: int
    ) -> None:
        at = shift % len(neighbours)
        speeds = model.speeds(neighbours, mode)
        turned = model.speeds(neighbours[at:] + neighbours[:at], mode)
        assert turned == speeds[at:] + speeds[:at]
        assert all(0 < speed <= 1 for speed in speeds)

    @given(neighbours=neighbourhoods, mode=modes, more=loads)
    def test_nobody_gains_by_company(
        self, model: Interference, neighbours: list[Load], mode: Mode, more: Load
    ) -> None:
        before = model.speeds(neighbours, mode)
        after = model.speeds([*neighbours, more], mode)
        assert all(now <= then + 1e-12 for now, then in zip(after, before, strict=False))

    @given(neighbours=neighbourhoods, mode=modes, sm=st.floats(0, 1), dram=st.floats(0, 1))
    def test_nobody_gains_by_a_busier_neighbour(
        self, model: Interference, neighbours: list[Load], mode: Mode, sm: float, dram: float
    ) -> None:
        *others, last = neighbours
        busier = replace(
            last,
            sm_active=max(sm, last.sm_active),
            dram_active=max(dram, last.dram_active),
        )
        before = model.speeds(neighbours, mode)[:-1]
        after = model.speeds([*others, busier], mode)[:-1]
        assert all(now <= then + 1e-12 for now, then in zip(after, before, strict=True))


class TestByMode:
    """An MPS server takes turns with the processes outside it."""

    model = Learned({Mode.MPS: 0.5, Mode.STREAMS: 1.0})

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


class TestLearned:
    model = Learned({Mode.MPS: 0.5, Mode.STREAMS: 1.0})

    def test_a_pair(self) -> None:
        # 1 + 0.5 · 0.8 · 0.6 = 1.24, the same for the other, whatever they ask of DRAM
        speeds = self.model.speeds([load(0.8, 0.5), load(0.6, 0.4)], Mode.MPS)
        assert speeds == pytest.approx([1 / 1.24, 1 / 1.24])

    def test_the_modes_have_their_own_coefficients(self) -> None:
        speeds = self.model.speeds([load(0.8, 0.5), load(0.6, 0.4)], Mode.STREAMS)
        assert speeds == pytest.approx([1 / 1.48, 1 / 1.48])

    def test_what_exceeds_a_gpu_costs_in_full(self) -> None:
        # the first's neighbours want 1.7: 0.5 · 1.7 + 0.5 · 0.7 = 1.2; the others' 1.9 and 1.8
        speeds = self.model.speeds([load(1.0), load(0.8), load(0.9)], Mode.MPS)
        assert speeds == pytest.approx([1 / 2.2, 1 / (1 + 0.8 * 1.4), 1 / (1 + 0.9 * 1.3)])

    def test_a_light_job_hardly_feels_heavy_ones(self) -> None:
        light, *_ = Learned().speeds([load(0.05), load(1.0), load(1.0)], Mode.STREAMS)
        assert light > 0.9

    @pytest.mark.parametrize("mode", SHARED)
    def test_more_jobs_get_no_more_done_than_two_busy_ones(self, mode: Mode) -> None:
        done = [sum(Learned().speeds([load(1.0)] * count, mode)) for count in (2, 3, 5, 20)]
        assert done == sorted(done, reverse=True)
        assert 1.0 <= done[-1] < 1.05 < done[0] < 1.5


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
        ("name", "kind"), [("none", Unslowed), ("additive", Additive), ("learned", Learned)]
    )
    def test_by_name(self, name: str, kind: type[Interference]) -> None:
        assert type(make(name)) is kind

    @pytest.mark.parametrize("name", ["", "Learned", "measured", "measured:", "learned:x"])
    def test_another_name_is_told_what_there_is(self, name: str) -> None:
        with pytest.raises(CarmaError) as caught:
            make(name)
        assert "none, additive, learned or measured:FILE" in caught.value.hint

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(CarmaError, match=r"nowhere\.csv: No such file or directory$"):
            make(f"measured:{tmp_path / 'nowhere.csv'}")


class TestCoefficients:
    shipped = json.loads(files("carmad.sim").joinpath("coefficients/interference.json").read_text())

    @pytest.mark.parametrize("mode", SHARED)
    def test_they_say_where_they_are_from(self, mode: Mode) -> None:
        fit = self.shipped["modes"][mode]
        assert 0 <= fit["sm"] <= 1
        assert fit["data"] and fit["licence"] and fit["sides_of_pairs"] > 0
        assert self.shipped["command"] == "python -m lab.simulator.interference"
