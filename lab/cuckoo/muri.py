"""What Cuckoo is compared with: Muri's model of a round, plans in order of arrival or deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from policies.cuckoo.interleaving import NOTHING, Numbers, Phases
from policies.cuckoo.planning import Groups, Slot, Window


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Muri's (Zhao et al., SIGCOMM 2022; the paper's Muri-P): each stage uses one resource and
    nothing overlaps, so jobs rotate over the three resources, one ahead of the other, and each time
    wait for the slowest."""

    def iteration_s(self, jobs: Sequence[Phases]) -> Numbers:
        rows = [(job.load, job.forward + job.backward, job.communication) for job in jobs]
        if len(rows) > 3:
            raise ValueError("at most three jobs: no two may use the same of three resources")
        total = NOTHING
        for stage in range(3):
            busy = (row[(stage - n) % 3] for n, row in enumerate(rows))
            total = total + reduce(np.maximum, busy, NOTHING)
        return total


def first_in_first_out(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    return _in_turn(groups, windows, np.argsort(groups.submitted_at, kind="stable"))


def earliest_deadline_first(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    return _in_turn(groups, windows, np.argsort(groups.deadline_s, kind="stable"))


def _in_turn(
    groups: Groups, windows: Sequence[Window], turns: NDArray[np.intp]
) -> list[Slot | None]:
    """Assigns each group to the window that is free first, and among several to the one where it
    is fastest."""
    plan: list[Slot | None] = [None] * len(groups.time_s)
    free_s = [window.begin_s for window in windows]
    orders = [0] * len(windows)
    for group in turns.tolist():
        times_s = groups.time_s[group].tolist()
        open_to = [
            (free_s[n], times_s[window.kind], n)
            for n, window in enumerate(windows)
            if groups.fits[group, n]
        ]
        if open_to:
            begin_s, time_s, n = min(open_to)
            orders[n] += 1
            plan[group] = Slot(n, orders[n], begin_s)
            free_s[n] = begin_s + time_s
    return plan
