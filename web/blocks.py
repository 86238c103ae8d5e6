"""What `cli.render` says, for templates: the same words in paragraphs, lists and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cli.table import Table

if TYPE_CHECKING:
    from cli.table import Block, Cell, Span

BULLET = "  · "


@dataclass(slots=True)
class Piece:
    """`kind`: heading, text, list or table."""

    kind: str
    lines: list[Sequence[Span]] = field(default_factory=list)
    rows: list[list[Sequence[Span]]] = field(default_factory=list)


def pieces(picture: Iterable[Block]) -> list[Piece]:
    found: list[Piece] = []
    for block in picture:
        if isinstance(block, Table):
            rows = [[_spans(cell) for cell in row] for row in block.rows]
            found.append(Piece("table", rows=rows))
        elif spans := [span for span in _spans(block) if span[0]]:
            kind = _kind(spans)
            if not (kind == "list" and found and found[-1].kind == "list"):
                found.append(Piece(kind))
            text, style = spans[0]
            found[-1].lines.append([(text.removeprefix(BULLET), style), *spans[1:]])
    return found


def _kind(spans: Sequence[Span]) -> str:
    if spans[0][0].startswith(BULLET):
        return "list"
    return "heading" if [style for _, style in spans] == ["bold"] else "text"


def _spans(cell: Cell) -> Sequence[Span]:
    return ((cell, ""),) if isinstance(cell, str) else cell


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, drawn from `begin` on; both in per cent."""

    name: str
    mib: int
    begin: float
    width: float


def shares(parts: Mapping[str, int]) -> list[Share]:
    total, done, found = sum(parts.values()), 0, []
    for name, mib in parts.items():
        found.append(Share(name, mib, round(100 * done / total, 2), round(100 * mib / total, 2)))
        done += mib
    return [share for share in found if share.mib]
