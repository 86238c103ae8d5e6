"""GPUMemNet's files: labelled networks (gzipped JSON lines, the first of which has their origin),
and the card stored with trained weights.

A card says which networks the weights do not apply to (CARMA paper, 2.3: such estimators
extrapolate poorly).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from estimators.gpumemnet.features import SIZES, Features
from estimators.tracer.report import Layer

WEIGHTS = Path(__file__).parent / "weights"
GB = 1000  # MiB; the unit of the paper's bins
SLACK = 2.0  # factor beyond the training data up to which the weights are used

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
        raise ValueError(f"{path}: not labelled networks of `carma gpumemnet`: {error}") from error


def _sample(row: dict[str, object]) -> Sample:
    return Sample(
        int(row["batch"]),  # type: ignore[call-overload]
        tuple(Layer(*layer) for layer in row["layers"]),  # type: ignore[attr-defined]
        int(row["mib"]),  # type: ignore[call-overload]
    )


@dataclass(frozen=True, slots=True)
class Score:
    """The accuracy of an ensemble on networks that it has not seen."""

    ensemble: str  # mlp, transformer, or both
    range_gb: int  # width of a bin
    tested: int  # networks
    accuracy: float  # on these
    f1: float  # on these, weighted by the classes' sizes
    validation: float | None = None  # accuracy while it was trained, mean of the folds


@dataclass(frozen=True, slots=True)
class Card:
    origin: Origin
    samples: int
    range_gb: int  # width of a bin
    limit_gb: int  # top of the second-to-last bin; the last has none
    kinds: tuple[str, ...]  # of layers in the training data
    spans: tuple[tuple[str, float, float], ...]  # of each size there: least and most
    scores: tuple[Score, ...]

    def span_mib(self, number: int) -> tuple[int, int]:
        """The edges of a bin."""
        return number * self.range_gb * GB, (number + 1) * self.range_gb * GB

    @property
    def bins(self) -> int:
        return self.limit_gb // self.range_gb + 1

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


@cache
def read_card(family: str, folder: Path = WEIGHTS) -> Card:
    """Raises OSError if there are no such weights."""
    fields = json.loads((folder / f"{family}.json").read_text())
    return Card(
        origin=Origin(**fields.pop("origin")),
        kinds=tuple(fields.pop("kinds")),
        spans=tuple(tuple(span) for span in fields.pop("spans")),
        scores=tuple(Score(**score) for score in fields.pop("scores")),
        **fields,
    )


def span_values(seen: Features) -> Iterator[tuple[str, float]]:
    """Values that must be within the spans of the training data."""
    sizes = dict(zip(SIZES, seen.sizes, strict=True))
    yield from sizes.items()
    yield "activations per batch", sizes["batch size"] * sizes["activations per sample"]


def outside(card: Card, named: Sequence[str], seen: Features | None) -> str:
    """How a network differs from all that the weights were trained on, in words; "" if it does not.

    `seen` may be None if a kind of layer among `named` is new.
    """
    new = sorted(set(named) - set(card.kinds))
    if new or seen is None:
        return f"layers that it was not trained on: {', '.join(new)}"
    values = dict(span_values(seen))
    for name, least, most in card.spans:
        if not least / SLACK <= values[name] <= most * SLACK:
            return f"{values[name]:,.0f} {name}, and it was trained on {least:,.0f} to {most:,.0f}"
    return ""
