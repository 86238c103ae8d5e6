"""The table of GPUs, what people write for a cluster, and what a GPU draws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.errors import CarmaError
from carmad.sim.hardware import KINDS, GpuKind, parse, power_w

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

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_can_be_named(self, kind: str) -> None:
        assert parse(f"1x{kind}").nodes[0].kind is KINDS[kind]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_table_is_plausible(kind: GpuKind) -> None:
    gigabytes = int(kind.name.rpartition("-")[2].removesuffix("GB"))
    assert 0.85 < kind.memory_mib / 1024 / gigabytes <= 1.01
    assert 0 < kind.idle_w < kind.max_w / 3
    assert 0.01 < kind.speed < 3
    assert all(speed > 0 for _, speed in kind.speeds)


def test_speeds_are_relative_to_the_a100() -> None:
    assert A100.speed == 1.0
    assert not A100.speeds


class TestPower:
    def test_at_rest(self) -> None:
        assert power_w(A100, 0.0, 0.0) == 50

    @pytest.mark.parametrize(
        ("sm", "dram", "watts"), [(0.25, 0.1, 198.75), (0.1, 0.25, 198.75), (1.0, 1.0, 347.5)]
    )
    def test_by_the_busier_of_both(self, sm: float, dram: float, watts: float) -> None:
        # 50 + 0.85 · 350 · √0.25 = 198.75
        assert power_w(A100, sm, dram) == pytest.approx(watts)

    def test_no_more_than_everything_at_once(self) -> None:
        assert power_w(A100, 2.7, 0.5) == power_w(A100, 1.0, 0.5)

    @given(fractions, fractions)
    def test_the_first_step_costs_the_most(self, one: float, other: float) -> None:
        between = power_w(A100, (one + other) / 2, 0.0)
        mean = (power_w(A100, one, 0.0) + power_w(A100, other, 0.0)) / 2
        assert between >= mean - 1e-9
