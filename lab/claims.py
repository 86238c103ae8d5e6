"""The main claims of a paper, with our figures beside them, and a verdict on each.

The rule, for a referee to disagree with:

1. The median of ours decides. As a multiple of the paper's *effect* (its figure less what would be
   no effect) it is *reproduced* from 0.75 to 1.25, *stronger* above, *weaker* from there to 0, and
   *not reproduced* at 0 or on the other side. A figure that is a limit is kept or not.
2. *Undecided*: the 90 % interval of the median (bootstrap over seeds, samples or sets) reaches into
   another verdict. So noise never helps.
3. *Indicative*: where anything is drawn, fewer than five draws decide nothing, whatever they say.
   One figure decides by itself only if nothing is drawn (the paper's own trace in its own order,
   simulated), or if it is of a whole data set or of all plans of a run (an error, an accuracy, a
   time): then to draw again would change next to nothing.
4. *Another set-up*: ours is stronger, but a figure of the set-up (the baseline's queueing, load,
   deadlines met) is not the paper's within a quarter, or none is known to compare. To do better in
   an easier test reproduces nothing.
5. *Fitted*: something was chosen on the very data that ours are judged on. That proves nothing, and
   counts for nothing.
6. *Not yet run*: public data can test it, but nobody has run it with the code of now. It counts
   among what can be tested.

What can be measured in several ways is one claim: it is judged by the way nearest the paper's, and
the others are told. What is not reproduced has a cause that was tried, with and without, or says
that none was.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from random import Random

from benchmarks.harness import markdown_table
from carmad.readable import number

CLOSE = 0.25  # of the paper's effect, or of a set-up's figure
CONFIDENCE = 0.9
RESAMPLES = 2_000
DRAWS = 5  # fewer decide nothing
NO_CAUSE = "no cause tested"

Values = tuple[float, ...]


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    STRONGER = "stronger"
    WEAKER = "weaker"
    NOT = "not reproduced"
    UNDECIDED = "undecided"
    ELSEWHERE = "another set-up"
    INDICATIVE = "indicative"
    FITTED = "fitted"
    DUE = "not yet run"
    UNTESTED = "not testable with public data"


# What no cause is asked for.
SETTLED = (Verdict.REPRODUCED, Verdict.FITTED, Verdict.DUE, Verdict.UNTESTED)
BY_STRENGTH = (Verdict.NOT, Verdict.WEAKER, Verdict.REPRODUCED, Verdict.STRONGER)


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


@dataclass(frozen=True, slots=True)
class SetUp:
    """A figure of the set-up in which a claim is judged, the paper's and ours."""

    what: str
    paper: float
    ours: float
    unit: str = ""

    @property
    def is_close(self) -> bool:
        return abs(self.ours - self.paper) <= CLOSE * abs(self.paper)

    def __str__(self) -> str:
        return f"{self.what} {number(self.paper)} {self.unit}".rstrip() + f" ({number(self.ours)})"


@dataclass(frozen=True)
class Claim:
    """`ours`: a value per seed, sample or set; none if it cannot be tested, or (`due`) has not been
    yet. `whole`: nothing is drawn, or the one value is of a whole data set. `fitted`: on the data
    that it is judged on. `null`: the value that would mean no effect, such as 1 for a ratio.
    `price`: the effect is what something costs, so that less of it is better. `under`: ours by
    another model of interference.
    `note`: what is judged, and other ways to judge it. `cause`: of the difference, as tried."""

    what: str
    paper: float
    ours: Values
    unit: str
    note: str = ""
    cause: str = ""
    null: float = 0.0
    bound: Bound = Bound.NONE
    price: bool = False
    whole: bool = False
    fitted: bool = False
    due: bool = False
    setup: tuple[SetUp, ...] = ()
    under: Mapping[str, Values] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @cached_property
    def verdict(self) -> Verdict:
        if not self.ours:
            return Verdict.DUE if self.due else Verdict.UNTESTED
        if self.fitted:
            return Verdict.FITTED
        if not self.whole and len(self.ours) < DRAWS:
            return Verdict.INDICATIVE
        if len(self._readings) > 1:
            return Verdict.UNDECIDED
        (reading,) = self._readings
        alike = bool(self.setup) and all(each.is_close for each in self.setup)
        return Verdict.ELSEWHERE if reading is Verdict.STRONGER and not alike else reading

    @cached_property
    def disagreeing(self) -> Mapping[str, Verdict]:
        """The models of interference under which the verdict is another one."""
        verdicts = {
            model: replace(self, ours=values, under={}).verdict
            for model, values in self.under.items()
        }
        return {model: other for model, other in verdicts.items() if other is not self.verdict}

    @cached_property
    def _readings(self) -> Sequence[Verdict]:
        """What the median says, and the ends of its interval, each once."""
        found = {self._read(value) for value in (*median_interval(self.ours), self.median)}
        return [verdict for verdict in BY_STRENGTH if verdict in found]

    def _read(self, value: float) -> Verdict:
        if self.bound:
            at_least = self.bound is Bound.AT_LEAST
            kept = value >= self.paper if at_least else value <= self.paper
            return Verdict.REPRODUCED if kept else Verdict.NOT
        ratio = (value - self.null) / (self.paper - self.null)
        if abs(ratio - 1) <= CLOSE:
            return Verdict.REPRODUCED
        if (ratio > 1) is not self.price:
            return Verdict.STRONGER
        return Verdict.WEAKER if ratio > 0 else Verdict.NOT

    def otherwise(self, how: str, values: Sequence[float]) -> str:
        """What the claim would be judged to be by these values."""
        return f"{how}: {replace(self, ours=tuple(values), under={}).told}"

    @property
    def told(self) -> str:
        return f"{self._figure}, {self._judged}"

    @property
    def _figure(self) -> str:
        figure = f"{number(self.median)} {self.unit}".rstrip()
        if len(self.ours) > 1:
            low, high = median_interval(self.ours)
            figure += f" ({number(low)} to {number(high)}; {len(self.ours)})"
        return figure

    @property
    def _judged(self) -> str:
        """The verdict, and what the figures alone would say."""
        if self.verdict in (Verdict.UNDECIDED, Verdict.ELSEWHERE, Verdict.INDICATIVE):
            ends = dict.fromkeys((self._readings[0], self._readings[-1]))
            return f"{self.verdict} ({' to '.join(ends)})"
        return self.verdict

    def cells(self) -> tuple[str, ...]:
        paper = f"{self.bound} {number(self.paper)} {self.unit}".strip()
        others = ", ".join(f"{model}: {other}" for model, other in self.disagreeing.items())
        return (
            self.what,
            paper,
            self._figure if self.ours else "",
            self._judged,
            "; ".join(map(str, self.setup)),
            others,
            self.note,
            self.cause or ("" if self.verdict in SETTLED else NO_CAUSE),
        )


HEADINGS = (
    "claim",
    "paper",
    "ours: median (its interval; values)",
    "verdict",
    "set-up: paper (ours)",
    "by another model of interference",
    "judged on",
    "tested cause",
)


def table(claims: Iterable[Claim]) -> str:
    return markdown_table(HEADINGS, [claim.cells() for claim in claims], (1, 2))
