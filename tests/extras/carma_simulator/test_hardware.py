"""The table of GPUs, cluster specifications, and GPU power."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_simulator.hardware import parse
from carma_simulator.report.measures import gpus
from carmad.errors import CarmaError
from carmad.gpu.kinds import KINDS, GpuKind

A100 = KINDS["A100-40GB"]
fractions = st.floats(0, 1)
MALFORMED = ("", "A100-40GB", "3x", "3xA100", "3 A100-40GB", "3xA100-40GB,", "1x1x1xT4-16GB")
NONE_AT_ALL = ("0xT4-16GB", "-1xT4-16GB", "0x8xT4-16GB", "2x0xT4-16GB", "9999999x8xT4-16GB")


class TestParse:
    def test_one_node(self) -> None:
        (node,) = parse("3xA100-40GB").nodes
        assert (node.name, node.kind, node.gpus) == ("node0", A100, 3)

    def test_many_nodes(self) -> None:
        nodes = parse("250x8xV100-32GB").nodes
        assert len(nodes) == len({node.name for node in nodes}) == 250
        assert {(node.kind.name, node.gpus) for node in nodes} == {("V100-32GB", 8)}

    def test_unlike_parts(self) -> None:
        nodes = parse(" 2x4xh100-80gb, 1XA100-40GB ").nodes
        assert [(node.name, node.kind.name, node.gpus) for node in nodes] == [
            ("node0", "H100-80GB", 4),
            ("node1", "H100-80GB", 4),
            ("node2", "A100-40GB", 1),
        ]

    @pytest.mark.parametrize("text", [*MALFORMED, *NONE_AT_ALL])
    def test_anything_else_is_told_what_there_is(self, text: str) -> None:
        with pytest.raises(CarmaError) as caught:
            parse(text)
        assert all(kind in caught.value.hint for kind in KINDS)

    @pytest.mark.parametrize(
        ("text", "name", "meant"),
        [
            ("3xA100", "A100", "did you mean A100-40GB or A100-80GB? kinds: "),
            ("8xv100-16gb,2x8xrtx4090", "rtx4090", "did you mean RTX4090-24GB? kinds: "),
            ("1xA10040GB", "A10040GB", "did you mean A100-40GB? kinds: "),
            ("1xH10-80GB", "H10-80GB", "did you mean H100-80GB"),
            ("1xTPU", "TPU", "kinds: "),
        ],
    )
    def test_a_name_that_is_nearly_right(self, text: str, name: str, meant: str) -> None:
        with pytest.raises(CarmaError) as caught:
            parse(text)
        assert caught.value.message == f"no GPU is called {name!r}"
        assert caught.value.hint.startswith(meant)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_can_be_named(self, kind: str) -> None:
        assert parse(f"1x{kind}").nodes[0].kind is KINDS[kind]


class TestMig:
    def test_instances(self) -> None:
        divided, whole = parse("2xA100-40GB/3G.20GB + 2x2g.10gb, 1xA100-40GB").nodes
        assert (divided.kind, divided.gpus, whole.instances) == (A100, 2, ())
        assert [(i.name, i.memory_mib) for i in divided.units] == [
            ("A100-40GB/3g.20gb", 20_096),
            ("A100-40GB/2g.10gb", 9_984),
            ("A100-40GB/2g.10gb", 9_984),
        ]
        assert [(i.sm_share, i.dram_share) for i in divided.units] == [
            (3 / 7, 4 / 8),
            (2 / 7, 2 / 8),
            (2 / 7, 2 / 8),
        ]
        assert whole.units == (A100,)

    @pytest.mark.parametrize("text", ["7x1g.5gb", "3g.20gb+2g.10gb", "2x3g.20gb", "7g.40gb"])
    def test_at_rest_they_draw_what_the_gpu_does(self, text: str) -> None:
        instances = parse(f"1xA100-40GB/{text}").nodes[0].instances
        assert sum(i.power_w(0.0, 0.0) for i in instances) == pytest.approx(50)

    def test_busy_ones_draw_their_share_of_the_rest(self) -> None:
        # 50 W · 3/6 at rest, and 3/7 of 0.85 · 350 W
        instance, _ = parse("1xA100-40GB/2x3g.20gb").nodes[0].instances
        assert instance.power_w(1.0, 0.5) == pytest.approx(25 + 127.5)

    @pytest.mark.parametrize(
        "text",
        [
            "8x1g.5gb",  # compute slices
            "2x3g.20gb+1g.5gb",  # memory slices
            "4g.20gb+4g.20gb",
            "1g.6gb",  # another GPU's
            "0x1g.5gb",
            "1g.5gb+",
            "",
        ],
    )
    def test_the_impossible_is_told_what_is_possible(self, text: str) -> None:
        with pytest.raises(CarmaError, match="cannot be divided") as caught:
            parse(f"1xA100-40GB/{text}")
        assert "7 compute and 8 memory slices" in caught.value.hint
        assert "1g.10gb (1, 2)" in caught.value.hint

    def test_not_every_gpu_can_be_divided(self) -> None:
        with pytest.raises(CarmaError, match="V100-32GB does not support MIG") as caught:
            parse("1xV100-32GB/7x1g.5gb")
        assert "A30-24GB" in caught.value.hint

    @pytest.mark.parametrize(
        ("kind", "profiles"),
        [
            ("A100-40GB", "7x1g.5gb 4x1g.10gb 3x2g.10gb 2x3g.20gb 1x4g.20gb 1x7g.40gb"),
            ("A100-80GB", "7x1g.10gb 4x1g.20gb 3x2g.20gb 2x3g.40gb 1x4g.40gb 1x7g.80gb"),
            ("H100-80GB", "7x1g.10gb 4x1g.20gb 3x2g.20gb 2x3g.40gb 1x4g.40gb 1x7g.80gb"),
            ("H200-141GB", "7x1g.18gb 4x1g.35gb 3x2g.35gb 2x3g.71gb 1x4g.71gb 1x7g.141gb"),
            ("A30-24GB", "4x1g.6gb 2x2g.12gb 1x4g.24gb"),
        ],
    )
    def test_as_many_instances_as_the_driver_lists(self, kind: str, profiles: str) -> None:
        for each in profiles.split():
            most, _, profile = each.partition("x")
            instances = parse(f"1x{kind}/{each}").nodes[0].instances
            assert len(instances) == int(most)
            assert sum(i.memory_mib for i in instances) <= KINDS[kind].memory_mib
            gigabytes = int(profile.partition(".")[2].removesuffix("gb"))
            assert 0.85 < instances[0].memory_mib / 1024 / gigabytes <= 1
            with pytest.raises(CarmaError):
                parse(f"1x{kind}/{int(most) + 1}x{profile}")

    @pytest.mark.parametrize(
        "text",
        [
            "1xA100-40GB/7x1g.5gb",
            "4x2xA30-24GB/2g.12gb+2x1g.6gb,4x2xA30-24GB/4x1g.6gb",
            "2xA100-40GB/3g.20gb+2x2g.10gb,2xA100-40GB",
        ],
    )
    def test_it_is_written_as_it_is_read(self, text: str) -> None:
        assert gpus(parse(text)) == text


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_table_is_plausible(kind: GpuKind) -> None:
    gigabytes = int(kind.name.rpartition("-")[2].removesuffix("GB"))
    assert 0.85 < kind.memory_mib / 1024 / gigabytes <= 1.01
    assert 0 < kind.idle_w < kind.max_w / 3
    assert 0.01 < kind.speed < 3
    assert all(speed > 0 for _, speed in kind.speeds)


@pytest.mark.parametrize(
    ("kind", "like", "ratio"),
    [
        ("H200-141GB", "H100-80GB", 1.0),
        ("A40-48GB", "A6000-48GB", 696 / 768),
        ("L4-24GB", "A10-24GB", 300 / 600),
        ("L40S-48GB", "RTX6000Ada-48GB", 864 / 960),
    ],
)
def test_what_nobody_measured_follows_another_kind_model_by_model(
    kind: str, like: str, ratio: float
) -> None:
    estimated, measured = KINDS[kind], KINDS[like]
    assert estimated.speed == pytest.approx(measured.speed * ratio, abs=0.006)
    assert len(estimated.speeds) == 3
    assert dict(estimated.speeds) == {
        model: pytest.approx(speed * ratio, abs=0.006) for model, speed in measured.speeds
    }


def test_speeds_are_relative_to_the_a100() -> None:
    assert A100.speed == 1.0
    assert not A100.speeds


class TestPower:
    def test_at_rest(self) -> None:
        assert A100.power_w(0.0, 0.0) == 50

    @pytest.mark.parametrize(
        ("sm", "dram", "watts"), [(0.25, 0.1, 179.49), (0.1, 0.25, 179.49), (1.0, 1.0, 347.5)]
    )
    def test_by_the_busier_of_both(self, sm: float, dram: float, watts: float) -> None:
        # 50 + 0.85 · 350 · 0.25^0.6
        assert A100.power_w(sm, dram) == pytest.approx(watts, abs=0.01)

    def test_the_dgx_station_is_as_its_figures_show(self) -> None:
        station = KINDS["DGX-Station-A100-40GB"]
        for sm in (0.0, 0.35, 0.9, 1.0):
            assert station.power_w(sm, 0.0) == pytest.approx(52 + 227 * sm**0.6)

    def test_no_more_than_everything_at_once(self) -> None:
        assert A100.power_w(2.7, 0.5) == A100.power_w(1.0, 0.5)

    @given(fractions, fractions)
    def test_the_first_step_costs_the_most(self, one: float, other: float) -> None:
        between = A100.power_w((one + other) / 2, 0.0)
        mean = (A100.power_w(one, 0.0) + A100.power_w(other, 0.0)) / 2
        assert between >= mean - 1e-9
