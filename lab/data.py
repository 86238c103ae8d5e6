"""The public data beside the project, their CSV files, and splits of what is in them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks import ROOT

DATA = ROOT.parent / "shared" / "data"
SEEDS, FOLDS = range(5), 4

Row = dict[str, str]


def read(path: str | Path) -> Iterator[Row]:
    """The rows of a CSV file; `path` is relative to the data."""
    with (DATA / path).open(newline="") as file:
        yield from csv.DictReader(file)


def folds(names: Sequence[str], seed: int, count: int = FOLDS) -> list[set[str]]:
    """The names, shuffled and dealt into so many parts, each to be held out in turn."""
    shuffled = Random(seed).sample(names, len(names))
    return [set(shuffled[n::count]) for n in range(count)]
