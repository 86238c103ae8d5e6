"""The trace estimator on GPUMemNet's multilayer perceptrons.

Truth is the peak that nvidia-smi showed for the whole process. The layers are built again from the
data's own list. How they were trained is not told: Adam is the best of three optimizers, and a loss
on targets of the outputs' size the best of six training loops, both by the errors of about 100
networks of either half. The constant for context and libraries is fitted to half of the networks,
taken by a hash of their name; the other half is judged. With `--every N`, only every Nth network is
traced, and nothing is kept.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import estimators
from benchmarks.harness import Report, of_rows
from estimators.horus import formula
from lab.main import main
from lab.memory.truth import (
    MIB,
    MLPS,
    Accuracy,
    Network,
    accuracy,
    comparison,
    error_rows,
    kept,
    networks,
)


@dataclass(frozen=True, slots=True)
class Told:
    """MiB; the first three without context."""

    floor: float
    reserved: float
    safe: float
    horus: float
    peak: float


def measure(every: int = 1) -> Report:
    torch.set_num_threads(1)
    fitted: list[Told] = []
    judged: list[Told] = []
    for network in networks()[::every]:
        (fitted if network.fitted else judged).append(told(network))
    return report(fitted, judged, kept_too=every == 1)


def told(network: Network) -> Told:
    inputs, targets = (
        torch.empty(network.batch, size, device="meta")
        for size in (_inputs(network), network.layers[-1][1])
    )
    report = estimators.trace(lambda: _Trained(network), (inputs, targets), loss=lambda loss: loss)
    return Told(
        report.floor / MIB,
        report.reserved / MIB,
        report.safe / MIB,
        formula(report.layers, report.batch),
        network.peak_mib,
    )


class _Trained(nn.Module):
    """From inputs and targets, both (batch, …), to the loss."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        found = re.search(r"dropout:([\d.]+)", network.name)
        share = float(found[1]) if found else 0.5
        self.layers = nn.Sequential(*(_layer(*layer, share) for layer in network.layers))

    def forward(self, inputs: Any, targets: Any) -> Any:
        return nn.functional.mse_loss(self.layers(inputs), targets)


def _layer(kind: str, outputs: int, parameters: int, dropout: float) -> nn.Module:
    if kind == "linear":
        return nn.Linear(parameters // outputs - 1, outputs)
    if kind == "batch_normalization":
        return nn.BatchNorm1d(outputs)
    if kind == "dropout":
        return nn.Dropout(dropout)
    made: nn.Module = nn.Softmax(dim=1) if kind == "Softmax" else getattr(nn, kind)()
    return made


def _inputs(network: Network) -> int:
    _, outputs, parameters = network.layers[0]
    return parameters // outputs - 1


def report(fitted: Sequence[Told], judged: Sequence[Told], kept_too: bool) -> Report:
    constant = statistics.median(one.peak - one.reserved for one in fitted)
    sides = {
        side: _accuracies(some, constant) for side, some in (("judged", judged), ("fitted", fitted))
    }
    bounds = (None, None, None, 25, None)
    return of_rows(
        "Multilayer perceptrons, as measured and as traced",
        error_rows(sides["judged"]["trace, expected"], "MiB", bounds),
        "Absolute errors in MiB, the half that is judged"
        " (some helped to choose optimizer and loss):",
        comparison(list(sides["judged"].items()), "MiB", ()),
        data={"constant_mib": constant, **kept(sides)},
        notes=[
            f"{len(fitted)} networks fitted, {len(judged)} judged",
            f"constant of that stack: {constant:.0f} MiB",
        ],
        kept=kept_too,
    )


def _accuracies(some: Sequence[Told], constant: float) -> dict[str, Accuracy]:
    said = {
        "trace, expected": [one.reserved + constant - one.peak for one in some],
        "trace, safe": [one.safe + constant - one.peak for one in some],
        "floor + constant": [one.floor + constant - one.peak for one in some],
        "Horus": [one.horus - one.peak for one in some],
    }
    return {name: accuracy(errors) for name, errors in said.items()}


if __name__ == "__main__":
    os.nice(5)
    main("memory_mlp", measure, MLPS)
