"""The card that is stored with GPUMemNet's weights. It says which networks the weights do not apply
to (CARMA paper, 2.3: such estimators extrapolate poorly)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from estimators.gpumemnet.features import SIZES, Features

WEIGHTS = Path(__file__).parent / "weights"
GB = 1000  # MiB; the unit of the paper's bins
SLACK = 2.0  # factor beyond the training data up to which the weights are used


@dataclass(frozen=True, slots=True)
class Origin:
    """How samples were made."""

    family: str  # one of features.FAMILIES
    seed: int
    label: str  # "traced", or "measured on" a GPU
    torch: str  # its version
    context_mib: int  # CUDA context and libraries, part of each label


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
