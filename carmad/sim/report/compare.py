"""What a paper reports beside what CARMA comes to, as a table: `paper | ours | difference`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carmad.sim.report.numbers import change, number

_HEADINGS = ("", "paper", "ours", "difference", "note")
_NUMBERS = range(1, 4)  # the columns that are set right


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of a paper and ours, in the same unit."""

    what: str
    paper: float
    ours: float
    unit: str
    note: str = ""

    @property
    def difference(self) -> str:
        """Relative to the paper's; of percentages in points, as their ratio would mislead."""
        if self.unit == "%":
            return f"{self.ours - self.paper:+.1f} points"
        return change(self.ours, self.paper)

    @property
    def cells(self) -> tuple[str, ...]:
        paper, ours = (f"{number(v)} {self.unit}".rstrip() for v in (self.paper, self.ours))
        return self.what, paper, ours, self.difference, self.note


def markdown(claims: Sequence[Claim]) -> str:
    """Aligned, so that it reads well in a terminal, too."""
    lines = [_HEADINGS, *(tuple(map(_escaped, claim.cells)) for claim in claims)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(_HEADINGS))]

    def written(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if n in _NUMBERS else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|".join(
        "-" * (width + 1) + (":" if n in _NUMBERS else "-") for n, width in enumerate(widths)
    )
    return "\n".join([written(lines[0]), f"|{rule}|", *map(written, lines[1:])])


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")
