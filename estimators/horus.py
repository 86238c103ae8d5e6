"""Horus: a formula over a model's summary (Yeung et al., 2022; CARMA paper, 2.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil

from carmad.plugin import Estimate, Refusal, Server, Settings
from estimators.look import Reader
from estimators.tracer.report import Layer, Report

NAME = "horus"
CONTEXT_MIB = 800
FLOAT_BYTES = 4
ACTIVATION = re.compile(r"LU\d*$|ish$|igmoid$|anh$|oft\w+$|Activation$|shrink$|Threshold$")
NOTE = "a formula over layers, in fp32: off by gigabytes for many models, mostly too high"


def formula(layers: Sequence[Layer], batch: int) -> float:
    """MiB: 800 + 4·(P + batch·(A + P))/2²⁰, of P parameters and A activations per sample.

    A is the output of the layers that compute something. Counted this way, it reproduces the
    numbers in the paper's artifact for ResNet, VGG, MobileNetV2, EfficientNet, Xception and
    Inception to within 0.02 %.
    """
    parameters = sum(layer.parameters for layer in layers)
    activations = sum(layer.activations for layer in layers if computes(layer))
    elements = parameters + batch * (activations + parameters)
    return CONTEXT_MIB + FLOAT_BYTES * elements / 2**20


def computes(layer: Layer) -> bool:
    """Whether its output is new and needed in the backward pass: true for layers with parameters
    and activation functions, false for pooling, dropout and reshaping."""
    return layer.parameters > 0 or ACTIVATION.search(layer.kind) is not None


def read(report: Report, settings: Settings) -> Estimate | Refusal:
    if not report.layers:
        return Refusal("its model has no layers to count", NAME)
    return Estimate(ceil(formula(report.layers, report.batch)), NAME, notes=(NOTE,))


def horus(settings: Settings, server: Server) -> Reader:
    return Reader(NAME, settings, server, read)
