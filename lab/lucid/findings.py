"""Medians and ranges of the results of `lab.lucid`, by row, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from benchmarks.harness import columns
from carmad.readable import number
from lab import compare
from lab.compare import Quote
from lab.lucid.runs import Result

Row = tuple[str, str]  # table and what
Figure = Callable[[Result], float]


@dataclass(frozen=True, slots=True)
class Finding:
    """A median beside the paper's, and what it is the median of: a value per sample."""

    claim: Quote
    values: tuple[float, ...]

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def noted(self) -> Quote:
        spread = f"{number(self.low)} to {number(self.high)}"
        return replace(self.claim, note="; ".join(filter(None, (spread, self.claim.note))))


class Runs:
    """Results by table and row: those of a row are one for each sample of the week."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.rows: dict[Row, list[Result]] = {}
        for result in results:
            table = result.trace if result.table == "muri" else result.table
            self.rows.setdefault((table, result.what), []).append(result)

    def of(self, table: str, what: str) -> Result:
        """The median of each figure."""
        return _median(self.rows[table, what])

    def finding(
        self, what: str, paper: float, unit: str, note: str, figure: Figure, row: Row
    ) -> Finding:
        values = [figure(result) for result in self.rows[row]]
        return _found(Quote(what, paper, median(values), unit, note), values)

    def ratio(
        self, what: str, paper: float, note: str, figure: Figure, over: Row, under: Row
    ) -> Finding:
        """Of one row to another, sample by sample."""
        pairs = zip(self.rows[over], self.rows[under], strict=True)
        values = [figure(one) / figure(other) for one, other in pairs if figure(other)]
        return _found(Quote(what, paper, median(values), "times", note), values)

    def table(self, *rows: Row) -> str:
        return columns(
            [self.rows[row] for row in rows],
            ("", lambda found: _what(found[0])),
            ("JCT h", spread(lambda one: one.jct, ".2f")),
            ("queue h", spread(lambda one: one.queue, ".2f")),
            ("p99.9 queue h", spread(lambda one: one.queue_p999, ".1f")),
            ("slowdown", middle(lambda one: one.slowdown, ".2f")),
            ("lost s", middle(lambda one: one.lost_s, ".0f")),
            ("mean queue", spread(lambda one: one.queue_mean, ".1f")),
            ("longest queue", spread(lambda one: one.queue_max, ".0f")),
            ("preempted", middle(lambda one: one.preemptions, ".0f")),
            ("OOM", middle(lambda one: one.oom_crashes, ".0f")),
            ("makespan h", middle(lambda one: one.makespan, ".0f")),
        )


def _found(quote: Quote, values: Sequence[float]) -> Finding:
    return Finding(quote, tuple(values))


def spread(figure: Figure, form: str) -> Callable[[Sequence[Result]], str]:
    """The median, and the lowest and highest if there are several."""

    def told(found: Sequence[Result]) -> str:
        values = sorted(map(figure, found))
        middle = f"{median(values):{form}}"
        return middle if len(values) == 1 else f"{middle} ({values[0]:{form}}–{values[-1]:{form}})"

    return told


def middle(figure: Figure, form: str) -> Callable[[Sequence[Result]], str]:
    return lambda found: f"{median(map(figure, found)):{form}}"


def _median(results: Sequence[Result]) -> Result:
    numbers: dict[str, Any] = {
        each.name: median(getattr(result, each.name) for result in results)
        for each in fields(Result)
        if each.type in ("int", "float")
    }
    return replace(results[0], **numbers)


def tables(found: Mapping[str, Sequence[Finding]]) -> dict[str, str]:
    return {name: compare.table([each.noted() for each in all]) for name, all in found.items()}


def claims(found: Mapping[str, Sequence[Finding]]) -> dict[str, Finding]:
    return {f"{name}: {each.claim.what}": each for name, all in found.items() for each in all}


def _what(one: Result) -> str:
    ended = "" if one.finished == one.jobs else f" ({one.jobs - one.finished:.0f} never ended)"
    return one.what + ended
