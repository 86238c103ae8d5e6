"""The formula checked against the paper's numbers, and its input tables."""

from __future__ import annotations

import csv
from math import ceil
from pathlib import Path

import pytest

from carma_testing import a_server, a_spec
from carmad.config import Estimation, Settings
from carmad.plugin import Estimate, Refusal, Trial
from estimators.faketensor import faketensor
from estimators.horus import formula, horus
from estimators.summary import computes, parse
from estimators.tracer.report import Layer
from tests.reports import a_report

TASKS = Path(__file__).parents[2] / "../shared/data/carma/tasks.csv"

TORCHSUMMARY = """
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 64, 112, 112]           9,408
       BatchNorm2d-2         [-1, 64, 112, 112]             128
              ReLU-3         [-1, 64, 112, 112]               0
         MaxPool2d-4           [-1, 64, 56, 56]               0
        Bottleneck-5           [-1, 64, 56, 56]               0
              LSTM-6  [[-1, 5, 8], [-1, 1, 8]]             640
AdaptiveAvgPool2d-173             [-1, 64, 1, 1]               0
          Linear-174                 [-1, 1000]          65,000
================================================================
Total params: 75,176
Trainable params: 75,176
Non-trainable params: 0
----------------------------------------------------------------
Input size (MB): 0.57
Params size (MB): 0.28
----------------------------------------------------------------
"""

TORCHINFO = """
===================================================================================================
Layer (type:depth-idx)      Input Shape          Output Shape         Param #      Mult-Adds
===================================================================================================
Net                         [16, 3, 8, 8]        [16, 10]             40           --
├─Sequential: 1-1           [16, 3, 8, 8]        [16, 4, 6, 6]        --           --
│    └─Conv2d (conv): 2-1   [16, 3, 8, 8]        [16, 4, 6, 6]        (112)        64,512
│    └─ReLU: 2-2            [16, 4, 6, 6]        [16, 4, 6, 6]        --           --
│    └─Conv2d (conv): 2-3   [16, 4, 6, 6]        [16, 4, 6, 6]        (recursive)  64,512
├─Block: 1-2                [16, 144]            [16, 20]             1,450        23,200
├─Dropout: 1-3              [16, 20]             [16, 20]             --           --
├─ModuleList: 1-4           --                   --                   210          --
===================================================================================================
Total params: 1,812
Trainable params: 1,700
Non-trainable params: 112
===================================================================================================
"""

# Parameters, and outputs per sample of all but pooling and dropout layers, as torchvision's
# models have them (the CIFAR ones with 100 classes; Xception is timm's legacy_xception).
PUBLISHED = {
    "resnet50": (25_557_032, 31_837_672),
    "vgg16": (138_357_544, 27_112_424),
    "mobilenet_v2": (3_504_872, 19_463_016),
    "efficientnet_b0": (5_288_548, 19_652_608),
    "xception": (22_855_952, 39_766_088),
    "inception": (23_834_568, 17_935_976),
    "resnet18": (11_227_812, 148_580),
    "resnet34": (21_335_972, 225_380),
}


@pytest.mark.skipif(not TASKS.exists(), reason="the CARMA artifact's task list is not here")
def test_the_published_numbers() -> None:
    """Its CNN rows, but for those of EfficientNet and MobileNetV3 on CIFAR and of U-Net: these have
    another model's numbers in the artifact. 40,000 stands for all that is more."""
    met = set()
    with TASKS.open(newline="") as file:
        for row in csv.DictReader(file):
            model, batch, published = row["model"], int(row["batch_size"]), float(row["horus_mib"])
            if model not in PUBLISHED or (model, row["dataset"]) == ("efficientnet_b0", "cifar100"):
                continue
            parameters, activations = PUBLISHED[model]
            mib = formula([Layer("Linear", activations, parameters)], batch)
            assert min(mib, 40_000) == pytest.approx(published, rel=2e-4), row["task"]
            met.add(model)
    assert met == PUBLISHED.keys()


def test_torchsummary() -> None:
    summary = parse(TORCHSUMMARY)
    assert summary.batch == 0
    assert summary.layers[0] == Layer("Conv2d", 64 * 112 * 112, 9408)
    assert summary.layers[5] == Layer("LSTM", 48, 640)
    assert summary.layers[6:] == (Layer("AdaptiveAvgPool2d", 64, 0), Layer("Linear", 1000, 65_000))
    assert [layer.kind for layer in summary.layers if computes(layer)] == [
        "Conv2d",
        "BatchNorm2d",
        "ReLU",
        "LSTM",
        "Linear",
    ]


def test_torchsummary_with_a_batch() -> None:
    summary = parse(TORCHSUMMARY.replace("[-1,", "[16,"))
    assert summary.batch == 16
    assert summary.layers == parse(TORCHSUMMARY).layers


def test_torchinfo() -> None:
    summary = parse(TORCHINFO)
    assert summary.batch == 16
    assert summary.layers == (
        Layer("Conv2d", 144, 112),
        Layer("ReLU", 144, 0),
        Layer("Conv2d", 144, 0),
        Layer("Block", 20, 1450),
        Layer("Dropout", 20, 0),
        Layer("ModuleList", 0, 210),
        Layer("Parameter", 0, 40),
    )


def test_torchinfo_in_ascii() -> None:
    plain = TORCHINFO.translate(str.maketrans("├─│└", "+ |+"))
    assert parse(plain) == parse(TORCHINFO)


@pytest.mark.parametrize("text", ["", "epoch 1: loss 0.3\n", TORCHINFO.splitlines()[2]])
def test_no_table(text: str) -> None:
    with pytest.raises(ValueError, match="summary"):
        parse(text)


def test_activation_functions_compute() -> None:
    kinds = "ReLU ReLU6 LeakyReLU GELU NewGELUActivation SiLU Mish Hardswish Sigmoid Tanh Softmax"
    assert all(computes(Layer(kind, 1, 0)) for kind in kinds.split())
    kinds = "MaxPool2d Dropout Identity Flatten DropPath StochasticDepth Bottleneck Shuffle"
    assert not any(computes(Layer(kind, 1, 0)) for kind in kinds.split())


def looked(**changes: object) -> Trial:
    return Trial(a_report(**changes).dumps(), "", code=0)


def test_horus_of_a_job() -> None:
    layers = (Layer("Linear", 1000, 2_000_000), Layer("ReLU", 1000, 0), Layer("Dropout", 1000, 0))
    server = a_server(looked(layers=layers, batch=32, seconds=2.5))
    estimate = horus(Settings(), server).estimate(a_spec())
    assert isinstance(estimate, Estimate)
    assert estimate.mib == ceil(800 + 4 * (2_000_000 + 32 * 2_002_000) / 2**20)
    assert (estimate.source, estimate.seconds) == ("horus", 2.5)


def test_horus_of_a_job_without_layers() -> None:
    refusal = horus(Settings(), a_server(looked(layers=()))).estimate(a_spec())
    assert isinstance(refusal, Refusal)
    assert refusal.source == "horus"


def test_faketensor_is_the_reading_with_the_margin_above_it() -> None:
    settings = Settings(estimation=Estimation(faketensor_margin_mib=1000))
    server = a_server(looked(faketensor=1500 * 2**20 + 1))
    estimate = faketensor(settings, server).estimate(a_spec())
    assert isinstance(estimate, Estimate)
    assert (estimate.mib, estimate.safe_mib, estimate.source) == (1501, 2501, "faketensor")


@pytest.mark.parametrize("make", [horus, faketensor])
def test_a_look_that_failed(make: type) -> None:
    refusal = make(Settings(), a_server()).estimate(a_spec())
    assert isinstance(refusal, Refusal)
    assert refusal.source == make.__name__
    assert "no such user" in refusal.why
