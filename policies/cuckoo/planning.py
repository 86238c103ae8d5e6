"""Which group of jobs uses which GPUs, and when (Cuckoo paper, 3.3.3).

Only groups with equal numbers of GPUs are planned together. Times are in seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from policies.cuckoo.interleaving import Numbers

NEVER = 1e12  # the cost of an impossible slot, in seconds: assignments need finite costs
SPARE_SLOTS = 1.5  # slots considered per group: some sets of GPUs are better used last
BETWEEN_EQUALS = 1e-6  # extra weight of the costs of groups that are earlier in the queue


class Window(NamedTuple):
    """When a set of GPUs of one kind is free."""

    kind: int
    begin_s: float = 0.0  # of busy sets: when the jobs there are predicted to end


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups to plan, as arrays with one row per group."""

    time_s: Numbers  # (groups, kinds): its duration there
    latest_s: Numbers  # (groups, kinds): when it must begin there to meet its deadlines
    fits: NDArray[np.bool_]  # (groups, windows)
    submitted_at: Numbers
    deadline_s: Numbers  # the earliest one

    def average_s(self) -> Numbers:
        """T of equation 13, per kind."""
        return np.asarray(self.time_s.mean(axis=0))


class Slot(NamedTuple):
    window: int
    order: int  # from 1
    begin_s: float  # if all groups take the average time


class Slots(NamedTuple):
    """Slots as parallel arrays."""

    window: NDArray[np.intp]
    order: NDArray[np.intp]
    begin_s: Numbers


Planner = Callable[[Groups, Sequence[Window]], list[Slot | None]]


def min_cost(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    """The paper's plan: the cheapest assignment of groups to (GPUs, order)."""
    count = len(groups.time_s)
    slots = first_slots(groups, windows)
    table = costs(groups, windows, slots)
    # With one kind of GPU and no deadlines, all assignments cost the same. Table 6, too, has two
    # with cost 6: the paper takes the one that is better for its first group.
    table *= 1 + BETWEEN_EQUALS * (1 - np.arange(count) / count)[:, None]
    plan: list[Slot | None] = [None] * count
    rows, columns = linear_sum_assignment(table)
    found = table[rows, columns] < NEVER
    chosen = columns[found]
    taken = (each[chosen].tolist() for each in slots)
    for row, slot in zip(rows[found].tolist(), map(Slot, *taken), strict=True):
        plan[row] = slot
    return plan


def costs(groups: Groups, windows: Sequence[Window], slots: Slots) -> Numbers:
    """Equations 13 and 14 for each group and slot.

    A group is as late as the latest of its jobs: with one job, or two with the same deadline and
    duration, that is the paper's D.
    """
    kind = np.array([window.kind for window in windows])[slots.window]
    complete_s = slots.begin_s + groups.time_s[:, kind]
    late_s = np.maximum(0.0, slots.begin_s - groups.latest_s[:, kind])
    return np.where(groups.fits[:, slots.window], complete_s + late_s, NEVER)


def first_slots(groups: Groups, windows: Sequence[Window]) -> Slots:
    """The slots that end first if all groups take the average time: one per group, some more, and
    the first one of each window."""
    count = len(groups.time_s)
    begin_s = np.array([window.begin_s for window in windows])
    length_s = groups.average_s()[[window.kind for window in windows]]
    starts_s = begin_s[:, None] + np.arange(count) * length_s[:, None]
    ends_s = starts_s + length_s[:, None]
    enough = min(math.ceil(SPARE_SLOTS * count) + len(windows), ends_s.size)
    kept = np.zeros(ends_s.shape, dtype=bool)
    kept.ravel()[np.argpartition(ends_s, enough - 1, axis=None)[:enough]] = True
    kept[:, 0] = True
    window, order = np.nonzero(kept)
    return Slots(window, order + 1, starts_s[window, order])
