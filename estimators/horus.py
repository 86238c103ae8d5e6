"""Horus: a formula over a model's summary (Yeung et al., 2022; CARMA paper, 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from carmad.plugin import Estimate, Refusal, Server, Settings
from estimators.look import Reader
from estimators.summary import computes
from estimators.tracer.report import Layer, Report

NAME = "horus"
CONTEXT_MIB = 800
FLOAT_BYTES = 4
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


def read(report: Report, settings: Settings) -> Estimate | Refusal:
    if not report.layers:
        return Refusal("its model has no layers to count", NAME)
    return Estimate(ceil(formula(report.layers, report.batch)), NAME, notes=(NOTE,))


def horus(settings: Settings, server: Server) -> Reader:
    return Reader(NAME, settings, server, read)
