"""The main claims of a paper, with our figures beside them, and a verdict on each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.harness import markdown_table
from carmad.readable import number

CLOSE = 0.25  # of the paper's effect


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    DIRECTION = "direction only"
    NOT = "not reproduced"
    UNTESTED = "cannot be tested here"


@dataclass(frozen=True, slots=True)
class Claim:
    """`ours`: a value per seed or sample; none if it cannot be tested here. `null`: the value that
    would mean no effect, such as 1 for a ratio. `why`: a sentence on the cause of the difference,
    or on what is missing."""

    what: str
    paper: float
    ours: tuple[float, ...]
    unit: str
    why: str = ""
    null: float = 0.0
    at_most: bool = False  # the paper's figure is a bound

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def verdict(self) -> Verdict:
        """Not reproduced: one of ours lies on the other side of `null` than the paper's figure, or
        beyond the paper's bound. Reproduced: the median is within a quarter of the paper's effect,
        or all of ours keep the bound."""
        if not self.ours:
            return Verdict.UNTESTED
        if self.at_most:
            return Verdict.REPRODUCED if max(self.ours) <= self.paper else Verdict.NOT
        effect = self.paper - self.null
        if any((value - self.null) * effect <= 0 for value in self.ours):
            return Verdict.NOT
        near = abs(self.median - self.paper) <= CLOSE * abs(effect)
        return Verdict.REPRODUCED if near else Verdict.DIRECTION

    def cells(self) -> tuple[str, ...]:
        ours = ""
        if self.ours:
            ours = f"{number(self.median)} {self.unit}".rstrip()
            if len(self.ours) > 1:
                ours += f" ({number(min(self.ours))} to {number(max(self.ours))})"
        paper = f"{'≤ ' * self.at_most}{number(self.paper)} {self.unit}".rstrip()
        return self.what, paper, ours, self.verdict, self.why


def table(claims: Iterable[Claim]) -> str:
    headings = ("claim", "paper", "ours: median (range)", "verdict", "why")
    return markdown_table(headings, [claim.cells() for claim in claims], (1, 2))
