"""The formula checked against the paper's numbers."""

from __future__ import annotations

import csv
from math import ceil
from pathlib import Path

import pytest

from carma_testing import a_server, a_spec
from carmad.config import Estimation, Settings
from carmad.plugin import Estimate, Refusal, Trial
from estimators.faketensor import faketensor
from estimators.horus import computes, formula, horus
from estimators.tracer.report import Layer
from tests.reports import a_report

TASKS = Path(__file__).parents[2] / "../shared/data/carma/tasks.csv"

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


def test_activation_functions_compute() -> None:
    kinds = "ReLU ReLU6 LeakyReLU GELU NewGELUActivation SiLU Mish Hardswish Sigmoid Tanh Softmax"
    assert all(computes(Layer(kind, 1, 0)) for kind in kinds.split())
    assert computes(Layer("LSTM", 48, 640))
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
