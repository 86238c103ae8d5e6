"""How right GPUMemNet is, beside the paper's Table 3.

On networks that we synthesised (`synthesised/` has them, labelled), with the weights that ship; and
on the MLPs that the paper's authors measured (../shared/data/memory/mlp_runs.csv), with weights
that are trained here by the same cross-validation and thrown away, for the data have no licence.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Sequence

from benchmarks.harness.main import main
from benchmarks.harness.report import Report, of_rows
from benchmarks.harness.rows import Row, percentile
from benchmarks.harness.timing import milliseconds
from benchmarks.memory.truth import MLPS, networks
from estimators.gpumemnet.answer import answer
from estimators.gpumemnet.card import WEIGHTS, Score, read
from estimators.gpumemnet.dataset import Sample
from estimators.gpumemnet.features import FAMILIES, features
from estimators.gpumemnet.published import TABLE_3
from estimators.tracer.report import Layer

KINDS = {"linear": "Linear", "batch_normalization": "BatchNorm1d", "dropout": "Dropout"}
TARGETS = {1: 0.95, 2: 0.97}  # accuracy, by width of a bin in GB (the paper's Table 3)
LIMIT_GB = 8
TIMES = 200


def measure() -> Report:
    rows = [*shipped(), *speed()]
    if MLPS.exists():
        rows = [*measured(), *rows]
    else:
        print("without the measured MLPs: ../shared/data is not there", file=sys.stderr)
    return of_rows("GPUMemNet, as measured", rows)


def measured() -> list[Row]:
    """Trained and tested on real measurements: 2,146 MLPs on an A100."""
    import torch

    from estimators.gpumemnet.training import cross_validate, labels

    torch.set_num_threads(1)  # for networks this small, more threads only wait
    samples = mlp_runs()
    seen = [features(sample.layers, sample.batch) for sample in samples]
    rows = []
    for range_gb, target in TARGETS.items():
        group = f"{len(samples)} measured MLPs, {range_gb} GB"
        truth = labels(samples, range_gb, LIMIT_GB)
        for score in cross_validate(seen, truth, range_gb).scores:
            bound = target if score.ensemble == "both" else None
            rows += _rows(group, "mlp", score, bound)
        commonest = Counter(truth.tolist()).most_common(1)[0][1] / len(truth)
        rows.append(Row(group, "always the commonest bin: accuracy", commonest, ""))
    return rows


def _rows(group: str, family: str, score: Score, bound: float | None = None) -> list[Row]:
    paper = TABLE_3.get((family, score.ensemble, score.range_gb))
    accuracy, f1 = (f"paper {figure}" for figure in paper) if paper else ("", "")
    name = f"{score.ensemble}: "
    return [
        Row(group, name + "accuracy", score.accuracy, "", bound=bound, least=True, note=accuracy),
        Row(group, name + "F1", score.f1, "", note=f1),
    ]


def mlp_runs() -> list[Sample]:
    return [
        Sample(
            network.batch,
            tuple(
                Layer(KINDS.get(kind, kind), activations, parameters)
                for kind, activations, parameters in network.layers
            ),
            network.peak_mib,
        )
        for network in networks()
    ]


def shipped() -> list[Row]:
    rows = []
    for family in FAMILIES:
        card = read(family)
        for score in card.scores:
            used = ", in use" if score.range_gb == card.range_gb else ""
            group = f"{card.samples} synthesised, {family}, {score.range_gb} GB{used}"
            rows += _rows(group, family, score)
    return rows


def speed() -> list[Row]:
    """An answer for a network of 64 tokens, the most there are."""
    layers: Sequence[Layer] = [Layer("Conv2d", 100_352, 36_864), Layer("ReLU", 100_352, 0)] * 32
    layers = [*layers, Layer("Linear", 1000, 512_000)]
    answer(layers, 32, 544)  # loads numpy and the weights
    took = [milliseconds(lambda: answer(layers, 32, 544)) for _ in range(TIMES)]
    size = sum(path.stat().st_size for path in WEIGHTS.iterdir()) / 1e6
    return [
        Row("speed", "answer, median", statistics.median(took), "ms", bound=16),
        Row("speed", "answer, P95", percentile(took, 0.95), "ms"),
        Row("size", "weights and cards", size, "MB", bound=2),
    ]


if __name__ == "__main__":
    main("memory_gpumemnet", measure)
