"""Parses printed model summaries: the tables of torchsummary and torchinfo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from estimators.tracer.report import Layer

HEADER = re.compile(r"^\s*Layer \(type.*Output Shape.*$", re.MULTILINE)
COLUMN = re.compile(r"\S+(?: \S+)*")  # titles contain single spaces, and are separated by more
ROW = re.compile(r"^(\W*([A-Za-z_]\w*).*?)\s+((?:\[|--).*)$")
CELL = re.compile(r"\[\[.*?\]\]|\[.*?\]|\S+")
SHAPE = re.compile(r"\[([^\[\]]+)\]")
DEPTH = re.compile(r": (\d+)-\d+")
TOTAL = re.compile(r"^Total params: ([\d,]+)", re.MULTILINE)
ACTIVATION = re.compile(r"LU\d*$|ish$|igmoid$|anh$|oft\w+$|Activation$|shrink$|Threshold$")


@dataclass(frozen=True, slots=True)
class Summary:
    """The layers of a model, and its batch size; 0 if the table has none."""

    layers: tuple[Layer, ...]
    batch: int


def parse(text: str) -> Summary:
    """Read a printed table: layer, output shape, parameters; other columns may be in between.

    In torchinfo's tree only the leaves are layers. Parameters that belong to none of them become
    one more layer without output. Raises ValueError if there is no table.
    """
    header = HEADER.search(text)
    if header is None:
        raise ValueError("no summary of torchsummary or torchinfo: it has no 'Layer (type…)' line")
    titles = COLUMN.findall(header[0])[1:]
    shape_at, parameters_at = titles.index("Output Shape"), titles.index("Param #")
    rows = []
    for line in text[header.end() :].splitlines():
        if line.startswith("Total params"):
            break
        if match := ROW.match(line):
            name, kind, rest = match.groups()
            cells = CELL.findall(rest)
            depth = int(found[1]) if (found := DEPTH.search(name)) else 0
            rows.append((depth, kind, _shapes(cells[shape_at]), _count(cells[parameters_at])))
    if not rows:
        raise ValueError("a summary without a layer")
    batch = max(0, next((shape[0] for _, _, shapes, _ in rows for shape in shapes), 0))
    ends = (0, "", (), 0)
    layers = tuple(
        Layer(kind, abs(sum(map(prod, shapes))) // (batch or 1), parameters)
        for (depth, kind, shapes, parameters), below in pairwise((*rows, ends))
        if below[0] <= depth
    )
    return Summary((*layers, *_rest(text, layers)), batch)


def computes(layer: Layer) -> bool:
    """Whether its output is new and needed in the backward pass: true for layers with parameters
    and activation functions, false for pooling, dropout, reshaping and torchsummary's blocks."""
    return layer.parameters > 0 or ACTIVATION.search(layer.kind) is not None


def _shapes(cell: str) -> tuple[tuple[int, ...], ...]:
    """[-1, 64, 7, 7], [[-1, 5], [-1, 6]], or -- for none."""
    return tuple(tuple(map(int, shape.split(","))) for shape in SHAPE.findall(cell))


def _count(cell: str) -> int:
    """9,408; (9,408) when they are frozen; (recursive) when they were counted before; or --."""
    digits = cell.strip("()").replace(",", "")
    return int(digits) if digits.isdigit() else 0


def _rest(text: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    total = TOTAL.search(text)
    rest = _count(total[1]) - sum(layer.parameters for layer in layers) if total else 0
    return (Layer("Parameter", 0, rest),) if rest > 0 else ()
