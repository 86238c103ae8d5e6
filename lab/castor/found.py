"""The results of `lab.castor`, found by row, and how two of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean

from lab.castor.runs import Result


@dataclass(frozen=True, slots=True)
class Runs:
    """All results, found by row."""

    results: Sequence[Result]

    def at(self, table: str, workload: str, size: str, what: str) -> Sequence[Result]:
        row = (table, workload, size, what)
        return [r for r in self.results if (r.table, r.workload, r.size, r.what) == row]

    def mean(self, of: str, *row: str) -> float:
        return fmean(getattr(result, of) for result in self.at(*row))

    def change(self, of: str, family: str, size: str, other: str) -> float:
        """Castor's against the other policy's, in %."""
        castor, others = (
            self.mean(of, "policies", family, size, policy) for policy in ("castor", other)
        )
        return relative(castor, others)


def relative(value: float, before: float) -> float:
    """In %; not a number where there was nothing."""
    return 100 * (value / before - 1) if before else nan


def named(family: str) -> str:
    ours = {"philly": "Philly", "saturn": "Saturn (the paper: Venus)"}
    return ours[family]
