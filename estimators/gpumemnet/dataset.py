"""Files of labelled networks: gzipped JSON lines, the first of which has their origin."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from estimators.tracer.report import Layer


@dataclass(frozen=True, slots=True)
class Origin:
    """How samples were made."""

    family: str  # one of features.FAMILIES
    seed: int
    label: str  # "traced", or "measured on" a GPU
    torch: str  # its version
    context_mib: int  # CUDA context and libraries, part of each label


@dataclass(frozen=True, slots=True)
class Sample:
    """A network that was briefly trained, or traced."""

    batch: int
    layers: tuple[Layer, ...]
    mib: int  # the peak of its process on the GPU


def write(path: Path, origin: Origin, samples: Iterable[Sample]) -> None:
    """`path` appears only when all samples are written."""
    unfinished = path.with_name(path.name + ".part")
    with gzip.open(unfinished, "wt", encoding="utf-8") as file:
        print(json.dumps(asdict(origin)), file=file)
        for sample in samples:
            layers = [[each.kind, each.activations, each.parameters] for each in sample.layers]
            row = {"batch": sample.batch, "mib": sample.mib, "layers": layers}
            print(json.dumps(row, separators=(",", ":")), file=file)
    unfinished.replace(path)


def read(path: Path) -> tuple[Origin, Sequence[Sample]]:
    """Raises OSError, or ValueError for a file that `write` did not write."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            origin = Origin(**json.loads(next(file)))
            return origin, [_sample(json.loads(line)) for line in file]
    except (EOFError, KeyError, StopIteration, TypeError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not labelled networks of `carma gpumemnet`: {error}") from error


def _sample(row: dict[str, object]) -> Sample:
    return Sample(
        int(row["batch"]),  # type: ignore[call-overload]
        tuple(Layer(*layer) for layer in row["layers"]),  # type: ignore[attr-defined]
        int(row["mib"]),  # type: ignore[call-overload]
    )
