"""GPUs are chosen by kind, size and number, in CARMA's spellings and in Slurm's."""

from __future__ import annotations

from typing import Any

import pytest

from carma_testing import a_spec
from carmad.api.refusals import fits_the_server
from carmad.core.gpus.gpu import Gpu, filter_gpus, parse_choice
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from cli.submission import read

CARDS = (
    ("NVIDIA A100-SXM4-40GB", 40_960),
    ("NVIDIA A100 80GB PCIe", 81_920),
    ("NVIDIA H100 80GB HBM3", 81_559),
    ("NVIDIA GeForce RTX 3090", 24_576),
    ("NVIDIA A10", 23_028),
    ("Tesla K80", 11_441),
)
GPUS = tuple(
    Gpu(GpuId(f"GPU-{index}"), index, name, mib) for index, (name, mib) in enumerate(CARDS)
)


@pytest.mark.parametrize(
    ("constraint", "numbers"),
    [
        ("a100", {0, 1}),
        ("A100", {0, 1}),
        ("a10", {4}),  # not an A100
        ("rtx3090", {3}),
        ("rtx-3090", {3}),
        ("80g", {1, 2}),
        ("40GB", {0, 1, 2}),
        ("12g", {0, 1, 2, 3, 4, 5}),  # a K80 is sold with 12 GB
        ("a100&80g", {1}),
        ("a100-80gb", {1}),
        ("h100|rtx3090", {2, 3}),
        ("a100&80g|k80", {1, 5}),
        ("nvidia", {0, 1, 2, 3, 4}),
        ("b200", set()),
        ("a", set()),  # no part of a word
    ],
)
def test_kinds_and_sizes(constraint: str, numbers: set[int]) -> None:
    found = filter_gpus(GPUS, parse_choice(constraint, None, None))
    assert {gpu.index for gpu in found} == numbers


@pytest.mark.parametrize(
    ("on", "not_on", "numbers"),
    [("3", None, {3}), ("0,2", None, {0, 2}), (None, "0", {1, 2, 3, 4, 5}), ("0,1", "1", {0})],
)
def test_numbers(on: str | None, not_on: str | None, numbers: set[int]) -> None:
    assert {gpu.index for gpu in filter_gpus(GPUS, parse_choice(None, on, not_on))} == numbers


def test_nothing_chosen_is_any() -> None:
    assert parse_choice(None, None, None) is None
    assert len(filter_gpus(GPUS, None)) == len(GPUS)


def asked(*words: str) -> dict[str, Any]:
    return read([*words, "true"])[1]


@pytest.mark.parametrize(
    ("words", "gpus", "constraint"),
    [
        (["--gpus", "2"], 2, None),
        (["--gpus", "a100:2"], 2, "a100"),
        (["--gpus", "a100"], 1, "a100"),
        (["-G", "h100:1"], 1, "h100"),
        (["--gpus-per-node=a100:4"], 4, "a100"),
        (["--gres", "gpu:h100:1"], 1, "h100"),
        (["--gres=gpu:2"], 2, None),
        (["--gres=gpu"], 1, None),
        (["--gres=gpu:a100"], 1, "a100"),
        (["-C", "80g&a100"], 1, "80g&a100"),
        (["--constraint=a100_80gb"], 1, "a100-80gb"),
        (["--gpus", "a100:2", "-C", "80g"], 2, "80g&a100"),
        (["--gpus", "0"], 0, None),
    ],
)
def test_spellings(words: list[str], gpus: int, constraint: str | None) -> None:
    body = asked(*words)
    assert (body["gpus"], body["constraint"]) == (gpus, constraint)


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus", "a100:x"],
        ["--gpus", ":2"],
        ["--gpus", "-1"],
        ["--constraint", "[a100*2]"],
        ["--constraint", "&"],
        ["--on", "all"],
        ["--not-on", "0;1"],
        ["--gpus", "a100:1", "--constraint", "80g|48g"],
    ],
)
def test_what_cannot_be_read(words: list[str]) -> None:
    with pytest.raises(CarmaError):
        asked(*words)


def test_what_this_server_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(CarmaError) as refused:
        fits_the_server(a_spec(constraint="b200"), GPUS[:3])
    assert refused.value.message == "the job wants a GPU with b200, and this server has none"
    for name in ("1 × NVIDIA A100-SXM4-40GB", "1 × NVIDIA H100 80GB HBM3", "carma gpus"):
        assert name in (refused.value.hint or "")
    with pytest.raises(CarmaError, match="2 GPUs with number 0, and this server has 1"):
        fits_the_server(a_spec(gpus=2, on="0"), GPUS)
    fits_the_server(a_spec(gpus=2, constraint="a100"), GPUS)


def test_memory_is_asked_of_the_chosen_kind() -> None:
    with pytest.raises(CarmaError, match=r"60\.0G of memory per GPU"):
        fits_the_server(a_spec(constraint="a100-40gb|rtx3090", memory_mib=61_440), GPUS[:1])
