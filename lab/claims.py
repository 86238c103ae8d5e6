"""The main claims of a paper, with our figures beside them, and a verdict on each.

A verdict looks at the interval of our median (90 %, bootstrap over seeds, samples or orders) as a
multiple of the paper's effect: reproduced if it meets the paper's effect within a quarter,
stronger or weaker if all of it lies beyond or short of that on the paper's side, else not. One that
meets the paper's effect and includes none is undecided: otherwise, the fewer the samples, the more
would be reproduced.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from random import Random

from benchmarks.harness import markdown_table
from carmad.readable import number

CLOSE = 0.25  # of the paper's effect
CONFIDENCE = 0.9
RESAMPLES = 2_000

Values = tuple[float, ...]


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    STRONGER = "stronger"
    WEAKER = "weaker"
    NOT = "not reproduced"
    UNDECIDED = "undecided"
    UNTESTED = "not testable with public data"


class Bound(StrEnum):
    """What the paper's figure is: an effect ("up to" is the greatest of several), or a limit."""

    NONE = ""
    AT_MOST = "≤"  # of a cost
    AT_LEAST = "≥"  # "over"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies, with `CONFIDENCE`; of one value, that value."""
    dice = Random("bootstrap")
    medians = sorted(
        statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return medians[tail], medians[-1 - tail]


@dataclass(frozen=True)
class Claim:
    """`ours`: a value per seed, sample or order; none if it cannot be tested. `null`: the value
    that would mean no effect, such as 1 for a ratio. `price`: the effect is what something costs,
    so that less of it is better. `under`: ours by another model of interference. `why`: a sentence
    on the cause of the difference, or on what is missing."""

    what: str
    paper: float
    ours: Values
    unit: str
    why: str = ""
    null: float = 0.0
    bound: Bound = Bound.NONE
    price: bool = False
    under: Mapping[str, Values] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @cached_property
    def verdict(self) -> Verdict:
        return self._judge(self.ours)

    @cached_property
    def disagreeing(self) -> Mapping[str, Verdict]:
        """The models of interference under which the verdict is another one."""
        verdicts = {model: self._judge(values) for model, values in self.under.items()}
        return {model: other for model, other in verdicts.items() if other is not self.verdict}

    def _judge(self, ours: Values) -> Verdict:
        if not ours:
            return Verdict.UNTESTED
        low, high = median_interval(ours)
        if self.bound:
            kept = (low <= self.paper, high <= self.paper)
            if self.bound is Bound.AT_LEAST:
                kept = (low >= self.paper, high >= self.paper)
            if all(kept):
                return Verdict.REPRODUCED
            return Verdict.UNDECIDED if any(kept) else Verdict.NOT
        effect = self.paper - self.null
        low, high = sorted((value - self.null) / effect for value in (low, high))
        if low <= 1 + CLOSE and high >= 1 - CLOSE:
            return Verdict.REPRODUCED if low > 0 else Verdict.UNDECIDED
        if low > 1:
            return Verdict.WEAKER if self.price else Verdict.STRONGER
        if self.price:
            return Verdict.STRONGER
        return Verdict.WEAKER if low > 0 else Verdict.NOT

    def cells(self) -> tuple[str, ...]:
        ours = ""
        if self.ours:
            ours = f"{number(self.median)} {self.unit}".rstrip()
            if len(self.ours) > 1:
                low, high = median_interval(self.ours)
                ours += f" ({number(low)} to {number(high)}; {len(self.ours)})"
        paper = f"{self.bound} {number(self.paper)} {self.unit}".strip()
        others = ", ".join(f"{model}: {other}" for model, other in self.disagreeing.items())
        return self.what, paper, ours, self.verdict, others, self.why


HEADINGS = (
    "claim",
    "paper",
    "ours: median (its interval; values)",
    "verdict",
    "by another model of interference",
    "why",
)


def table(claims: Iterable[Claim]) -> str:
    return markdown_table(HEADINGS, [claim.cells() for claim in claims], (1, 2))
