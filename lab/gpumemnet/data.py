"""Labelled networks (gzipped JSON lines, the first of which has their origin), and the paper's
accuracy."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from estimators.gpumemnet.files import Origin
from estimators.tracer.report import Layer

# The CARMA paper's (appendix A.2), by family, kind of ensemble, and width of a bin in GB: accuracy
# and F1.
TABLE_3 = {
    ("mlp", "mlp", 1): (0.95, 0.93),
    ("mlp", "mlp", 2): (0.97, 0.96),
    ("mlp", "transformer", 1): (0.97, 0.96),
    ("mlp", "transformer", 2): (0.98, 0.97),
    ("cnn", "mlp", 8): (0.83, 0.83),
    ("cnn", "transformer", 8): (0.81, 0.81),
    ("transformer", "mlp", 8): (0.88, 0.88),
    ("transformer", "transformer", 8): (0.86, 0.86),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A network that was briefly trained, or traced."""

    batch: int
    layers: tuple[Layer, ...]
    mib: int  # the peak of its process on the GPU


def write_samples(path: Path, origin: Origin, samples: Iterable[Sample]) -> None:
    """`path` appears only when all samples are written."""
    unfinished = path.with_name(path.name + ".part")
    with gzip.open(unfinished, "wt", encoding="utf-8") as file:
        print(json.dumps(asdict(origin)), file=file)
        for sample in samples:
            layers = [[each.kind, each.activations, each.parameters] for each in sample.layers]
            row = {"batch": sample.batch, "mib": sample.mib, "layers": layers}
            print(json.dumps(row, separators=(",", ":")), file=file)
    unfinished.replace(path)


def read_samples(path: Path) -> tuple[Origin, Sequence[Sample]]:
    """Raises OSError, or ValueError for a file that `write` did not write."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            origin = Origin(**json.loads(next(file)))
            return origin, [_sample(json.loads(line)) for line in file]
    except (EOFError, KeyError, StopIteration, TypeError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not labelled networks of GPUMemNet: {error}") from error


def _sample(row: dict[str, object]) -> Sample:
    return Sample(
        int(row["batch"]),  # type: ignore[call-overload]
        tuple(Layer(*layer) for layer in row["layers"]),  # type: ignore[attr-defined]
        int(row["mib"]),  # type: ignore[call-overload]
    )
