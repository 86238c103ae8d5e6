"""GPUMemNet as an estimator: its features, refusals and estimates."""

from __future__ import annotations

import subprocess
import sys
from math import expm1, hypot

import pytest

from carma_testing import a_server, a_spec
from carmad.config import Estimation, Settings
from carmad.plugin import Estimate, Refusal, Trial
from estimators.gpumemnet import answer, gpumemnet
from estimators.gpumemnet.features import (
    END,
    FAMILIES,
    GB,
    SIZES,
    TENSORS,
    TOKENS,
    family,
    features,
)
from estimators.gpumemnet.files import WEIGHTS, read_card
from estimators.tracer.report import Layer
from tests.reports import a_report

CONTEXT_MIB = 544


def an_mlp(width: int = 1024, depth: int = 4, activation: str = "ReLU") -> list[Layer]:
    each = [Layer("Linear", width, width * (width + 1)), Layer(activation, width, 0)]
    return [*each * depth, Layer("Linear", 10, 10 * (width + 1))]


def a_cnn(width: int = 64, side: int = 28, depth: int = 8) -> list[Layer]:
    size = width * side**2
    block = [
        Layer("Conv2d", size, 9 * width**2),
        Layer("BatchNorm2d", size, 2 * width),
        Layer("ReLU", size, 0),
    ]
    end = [Layer("AdaptiveAvgPool2d", width, 0), Layer("Flatten", width, 0)]
    return [*block * depth, *end, Layer("Linear", 1000, 1000 * (width + 1))]


def a_transformer(width: int = 256, length: int = 128, depth: int = 4) -> list[Layer]:
    size = width * length
    linear, norm = Layer("Linear", size, width * (width + 1)), Layer("LayerNorm", size, 2 * width)
    up = Layer("Linear", 4 * size, 4 * width * (width + 1))
    down = Layer("Linear", size, width * (4 * width + 1))
    block = [norm, linear, linear, linear, linear, norm, up, Layer("GELU", 4 * size, 0), down]
    words = 10_000
    end = [norm, Layer("Linear", words * length, words * (width + 1))]
    return [Layer("Embedding", size, words * width), *block * depth, *end]


NETWORKS = {"mlp": an_mlp(), "cnn": a_cnn(), "transformer": a_transformer()}


# -- what it sees


def test_a_network_is_counted_and_what_allocates_nothing_is_left_out() -> None:
    layers = [*a_cnn(depth=3), Layer("Dropout", 1000, 0), Layer("CrossEntropyLoss", 1, 0)]
    seen = features(layers, 32)
    sizes = dict(zip(SIZES, seen.sizes, strict=True))
    size = 64 * 28**2
    assert sizes == {
        "linear layers": 1,
        "batch norm layers": 3,
        "dropout layers": 1,
        "convolutions": 3,
        "batch size": 32,
        "parameters": 3 * (9 * 64**2 + 128) + 65_000,
        "activations per sample": 9 * size + 64 + 2000,
    }
    assert len(seen.tokens) == 12


def test_bytes_are_summed_by_the_layer_that_writes_and_the_one_that_reads() -> None:
    layers = [*a_cnn(depth=2), Layer("Flatten", 1000, 0)]
    tensors = dict(zip(TENSORS, features(layers, 32).tensors, strict=True))
    image = 4 * 32 * 64 * 28**2 / GB
    parameters = 2 * (9 * 64**2 + 128) + 65_000
    assert tensors["parameters"] == pytest.approx(16 * parameters / GB)  # with Adam's
    for ends in (("convolution", "batch norm"), ("batch norm", "activation")):
        assert tensors[ends] == pytest.approx(2 * image)
    for ends in (("activation", "convolution"), ("activation", "pool")):
        assert tensors[ends] == pytest.approx(image)
    assert tensors["ReLU"] == pytest.approx(2 * image) and tensors["Tanh"] == 0
    assert tensors["linear", END] == pytest.approx(4 * 32 * 1000 / GB)
    assert [tensors[f"largest output {n}"] for n in range(3)] == pytest.approx([image] * 3)


def test_other_libraries_names_count_as_torchs() -> None:
    ours = [Layer("Linear", 8, 72), Layer("GELU", 8, 0), Layer("Dropout", 8, 0)]
    theirs = [Layer("Linear", 8, 72), Layer("GELUActivation", 8, 0), Layer("DropPath", 8, 0)]
    assert features(ours, 4) == features(theirs, 4)


def test_modules_around_others_count_if_their_kind_is_known() -> None:
    """timm's BatchNormAct2d has an activation inside. Of a whole ViT with a class token of its own,
    only that token is new."""
    layers = [Layer("Conv2d", 64, 9), Layer("BatchNormAct2d", 64, 8, inner=True)]
    seen = features([*layers, Layer("VisionTransformer", 10, 5, inner=True)], 4)
    sizes = dict(zip(SIZES, seen.sizes, strict=True))
    assert (sizes["batch norm layers"], sizes["parameters"]) == (1, 22)
    assert sizes["activations per sample"] == 128


def test_each_activation_has_its_own_place_on_the_circle() -> None:
    places = {kind: features(an_mlp(activation=kind), 4).activation for kind in ("ReLU", "Tanh")}
    assert places["ReLU"] != places["Tanh"]
    assert all(hypot(*place) == pytest.approx(1) for place in places.values())
    assert features([Layer("Linear", 8, 72)], 4).activation == (0, 0)


def test_a_long_network_is_told_in_pieces_that_keep_order_and_sums() -> None:
    layers = an_mlp(depth=100)
    tokens = features(layers, 4).tokens
    assert len(tokens) == TOKENS < len(layers)
    assert all(sum(token[:-2]) == pytest.approx(1) for token in tokens)
    activations = sum(expm1(10 * token[-2]) for token in tokens)
    assert activations == pytest.approx(sum(layer.activations for layer in layers))
    growing = features([*an_mlp(8, 100), *an_mlp(1024, 100)], 4).tokens
    assert growing[0][-1] < growing[-1][-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_told_apart(name: str) -> None:
    assert family(NETWORKS[name]) == name


def test_a_vision_transformer_is_no_cnn_and_a_recommender_no_mlp() -> None:
    patches = Layer("Conv2d", 256 * 49, 3 * 256 * 16**2)
    assert family([patches, *a_transformer()[1:]]) == "transformer"
    assert family([Layer("Embedding", 64, 10**6), *an_mlp()]) is None
    assert family([]) is None


# -- what it answers


def test_the_shipped_weights_are_as_right_as_the_paper() -> None:
    for name, accuracy in (("cnn", 0.83), ("transformer", 0.88)):
        scores = {(each.ensemble, each.range_gb): each for each in read_card(name).scores}
        assert scores["both", 8].accuracy >= accuracy


@pytest.mark.parametrize("name", FAMILIES)
def test_an_estimate_is_a_bin_of_the_shipped_weights(name: str) -> None:
    card = read_card(name)
    found = answer(NETWORKS[name], 16, CONTEXT_MIB)
    assert isinstance(found, Estimate)
    width = card.range_gb * 1000
    assert found.mib % width == 0
    assert found.low is not None and found.low % width == 0 and found.low < found.mib
    assert found.high is not None and found.high % width == 0 and found.high >= found.mib
    assert name in found.notes[0]


@pytest.mark.parametrize(
    ("layers", "small", "large"),
    [(an_mlp(4096, 10), 16, 2048), (a_cnn(128, 56), 8, 256), (a_transformer(768, 256, 8), 4, 96)],
)
def test_more_samples_need_more_memory(layers: list[Layer], small: int, large: int) -> None:
    few, many = (answer(layers, batch, CONTEXT_MIB) for batch in (small, large))
    assert isinstance(few, Estimate)
    assert isinstance(many, Refusal) or many.mib > few.mib


def test_another_context_moves_the_bins() -> None:
    usual, larger = (answer(an_mlp(), 16, mib) for mib in (CONTEXT_MIB, CONTEXT_MIB + 900))
    assert isinstance(usual, Estimate) and isinstance(larger, Estimate)
    assert larger.mib == usual.mib + 900


@pytest.mark.parametrize(
    ("layers", "batch", "why"),
    [
        ([*a_transformer(), Layer("Conv1D", 1, 1)], 8, "not trained on: Conv1D"),
        ([*a_cnn(), Layer("LSTM", 1, 1)], 8, "not trained on: LSTM"),
        (an_mlp(), 10**6, "1,000,000 batch size, and it was trained on"),
        (an_mlp(60_000), 64, "parameters, and it was trained on"),
        (an_mlp(depth=200), 64, "201 linear layers"),
        (a_cnn(1024, 224), 128, "activations per batch"),
        ([Layer("LSTM", 10, 1000)], 8, "no MLP, CNN or transformer"),
        ([], 0, "no MLP, CNN or transformer"),
    ],
)
def test_it_knows_what_it_was_not_trained_on(layers: list[Layer], batch: int, why: str) -> None:
    found = answer(layers, batch, CONTEXT_MIB)
    assert isinstance(found, Refusal)
    assert why in found.why


def test_the_look_at_the_script_is_what_it_judges() -> None:
    settings = Settings(estimation=Estimation(context_mib=CONTEXT_MIB))
    report = a_report(layers=tuple(a_cnn()), batch=16, seconds=1.25)
    estimator = gpumemnet(settings, a_server(Trial(report.dumps(), "")))
    found = estimator.estimate(a_spec(argv=("python", "train.py")))
    expected = answer(a_cnn(), 16, CONTEXT_MIB)
    assert isinstance(found, Estimate) and isinstance(expected, Estimate)
    assert (found.mib, found.low, found.high) == (expected.mib, expected.low, expected.high)
    assert found.source == "gpumemnet"
    assert found.seconds == 1.25


def test_the_daemon_loads_neither_numpy_nor_torch_with_it() -> None:
    code = (
        "import sys, estimators.gpumemnet; "
        "sys.exit(' '.join({'numpy', 'torch', 'sklearn'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


# -- what ships


@pytest.mark.parametrize("name", FAMILIES)
def test_a_card_says_what_the_weights_rest_on(name: str) -> None:
    card = read_card(name)
    assert card.origin.family == name
    assert card.origin.label == "traced"
    assert card.samples > 500
    assert (WEIGHTS / f"{name}.npz").exists()


def test_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 2e6
