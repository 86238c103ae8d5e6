"""Compares a paper's figures with CARMA's, as a table: `paper | ours | difference`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import markdown_table
from carmad.readable import change, number

_HEADINGS = ("", "paper", "ours", "difference", "note")
_NUMBERS = range(1, 4)  # the right-aligned columns


@dataclass(frozen=True, slots=True)
class Quote:
    """A number quoted from a paper, and ours beside it in the same unit."""

    what: str
    paper: float
    ours: float
    unit: str
    note: str = ""

    @property
    def difference(self) -> str:
        """Relative to the paper's; for percentages in points, as a ratio would mislead."""
        if self.unit == "%":
            return f"{self.ours - self.paper:+.1f} points"
        return change(self.ours, self.paper)

    @property
    def cells(self) -> tuple[str, ...]:
        paper, ours = (f"{number(v)} {self.unit}".rstrip() for v in (self.paper, self.ours))
        return self.what, paper, ours, self.difference, self.note


def table(quotes: Sequence[Quote]) -> str:
    return markdown_table(_HEADINGS, [quote.cells for quote in quotes], _NUMBERS)
