"""What a pair of jobs is worth (Cuckoo paper, equations 1, 11 and 12)."""

from __future__ import annotations

import numpy as np

from policies.cuckoo.interleaving import Model, Numbers, Phases

AT_ONCE = 16_384  # pairs per block of the table, which fits into the processor's cache


def standalone(model: Model, jobs: Phases) -> Numbers:
    """The duration of an iteration of each alone: a round of one."""
    return model.iteration_s((jobs,))


def rounds(model: Model, rows: Phases, columns: Phases) -> Numbers:
    """The duration of a round of each row with each column, in the better of both orders."""
    round_s = np.empty((len(rows.load), len(columns.load)))
    at_once = max(1, AT_ONCE // max(1, len(columns.load)))
    other = columns.at((None, slice(None)))
    for at in range(0, len(rows.load), at_once):
        block = slice(at, at + at_once)
        one = rows.at((block, None))
        round_s[block] = model.iteration_s((one, other))
        if rows is not columns:
            np.minimum(round_s[block], model.iteration_s((other, one)), out=round_s[block])
    return np.minimum(round_s, round_s.T) if rows is columns else round_s


def eff_values(row_s: Numbers, column_s: Numbers, round_s: Numbers) -> Numbers:
    """Equation 1, for each row with each column."""
    return (row_s[:, None] + column_s) / round_s


def ddl_values(one_s: Numbers | float, other_s: Numbers | float) -> Numbers:
    """Equation 11, for deadlines in seconds from now. One that has passed counts as due now.

    Equal deadlines have the value 1, even if both have passed or neither exists. So only efficiency
    counts among jobs without deadlines, as in the paper (5.2). A deadline beside none has the value
    0.
    """
    one, other = np.maximum(one_s, 0.0), np.maximum(other_s, 0.0)
    later, sooner = np.maximum(one, other), np.minimum(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(later == sooner, 1.0, sooner / later)


def total_values(eff: Numbers, ddl: Numbers, weight: float) -> Numbers:
    """Equation 12."""
    return weight * eff + (1 - weight) * ddl
