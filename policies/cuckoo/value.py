"""What a pair of jobs is worth (Cuckoo paper, equations 1, 11 and 12)."""

from __future__ import annotations

import numpy as np

from policies.cuckoo.interleaving import Model, Numbers, Phases

AT_ONCE = 16_384  # pairs: a block of the table, which stays in the processor's cache


def standalone(model: Model, jobs: Phases) -> Numbers:
    """What an iteration of each takes alone: a round of one."""
    return model.iteration_s((jobs,))


def rounds(model: Model, jobs: Phases) -> Numbers:
    """How long a round takes of each with each, in the better of their two orders."""
    count = len(jobs.load)
    first = np.empty((count, count))
    rows = max(1, AT_ONCE // max(1, count))
    for at in range(0, count, rows):
        block = slice(at, at + rows)
        first[block] = model.iteration_s((jobs.at((block, None)), jobs.at((None, slice(None)))))
    return np.minimum(first, first.T)


def eff_values(alone_s: Numbers, round_s: Numbers) -> Numbers:
    """Equation 1, of each with each."""
    return (alone_s[:, None] + alone_s) / round_s


def ddl_values(one_s: Numbers, other_s: Numbers) -> Numbers:
    """Equation 11, of deadlines in so many seconds. One that has passed is due now.

    Equal deadlines are as close as can be, also if both have passed or neither is ever: 1. With
    that, nothing but efficiency counts among jobs without deadlines, as the paper wants it (5.2).
    Beside none any deadline is as far as can be: 0.
    """
    one, other = np.maximum(one_s, 0.0), np.maximum(other_s, 0.0)
    later, sooner = np.maximum(one, other), np.minimum(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(later == sooner, 1.0, sooner / later)


def total_values(eff: Numbers, ddl: Numbers, weight: float) -> Numbers:
    """Equation 12."""
    return weight * eff + (1 - weight) * ddl
