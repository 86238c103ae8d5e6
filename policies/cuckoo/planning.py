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
EXACT = 200  # groups assigned exactly, those that must begin first; the others follow in order


@dataclass(frozen=True, slots=True)
class Window:
    """When a set of GPUs of one kind is free, or a place beside a job that runs there."""

    kind: int
    begin_s: float = 0.0  # of busy sets: when the jobs there are predicted to end
    end_s: float = math.inf  # when promised to others: at most one group fits, if done by then

    @property
    def whole(self) -> bool:
        return self.end_s == math.inf


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups to plan, as arrays with one row per group. Each place beside a running job is a
    separate kind."""

    time_s: Numbers  # (groups, kinds): its duration there
    latest_s: Numbers  # (groups, kinds): when it must begin there to meet its deadlines
    fits: NDArray[np.bool_]  # (groups, windows)
    submitted_at: Numbers
    deadline_s: Numbers  # the earliest one
    late_s: Numbers  # how late it is without any of these windows

    def of(self, some: NDArray[np.intp]) -> Groups:
        """Only the groups with these indices."""
        return Groups(
            self.time_s[some],
            self.latest_s[some],
            self.fits[some],
            self.submitted_at[some],
            self.deadline_s[some],
            self.late_s[some],
        )

    def average_s(self) -> Numbers:
        """T of equation 13, per kind."""
        return np.asarray(self.time_s.mean(axis=0))


class Slot(NamedTuple):
    window: int
    order: int  # from 1
    begin_s: float  # if all groups take the average time


Planner = Callable[[Groups, Sequence[Window]], list[Slot | None]]


def min_cost(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    """The paper's plan: the cheapest assignment of groups to (GPUs, order).

    Of a long queue, only the groups that must begin first are assigned. With one kind of GPU that
    loses nothing: the order of `latest_s` is a cheapest one, since cost grows with lateness and all
    take the average time. There are few places for only one group.
    """
    turns = np.argsort(groups.latest_s.max(axis=1), kind="stable")
    exact = EXACT if any(window.whole for window in windows) else len(turns)
    first, others = turns[:exact], turns[exact:]
    plan: list[Slot | None] = [None] * len(turns)
    slots = first_slots(groups, windows, len(first))
    table = costs(groups.of(first), windows, slots)
    # With one kind of GPU and no deadlines, all assignments cost the same. Table 6, too, has two
    # with cost 6: the paper takes the one that is better for its first group.
    before = 1 - first / len(turns)
    table *= 1 + BETWEEN_EQUALS * before[:, None]
    for row, column in zip(*linear_sum_assignment(table), strict=True):
        if table[row, column] < NEVER:
            plan[first[row]] = slots[column]
    return _in_turn(groups, windows, others, plan) if len(others) else plan


def costs(groups: Groups, windows: Sequence[Window], slots: Sequence[Slot]) -> Numbers:
    """Equations 13 and 14 for each group and slot, minus the cost of having no slot.

    A group is as late as the latest of its jobs: with one job, or two with the same deadline and
    duration, that is the paper's D.
    """
    window = np.array([slot.window for slot in slots], dtype=int)
    begin_s = np.array([slot.begin_s for slot in slots])
    kind = np.array([windows[slot.window].kind for slot in slots], dtype=int)
    end_s = np.array([windows[slot.window].end_s for slot in slots])
    complete_s = begin_s + groups.time_s[:, kind]
    late_s = np.maximum(0.0, begin_s - groups.latest_s[:, kind])
    possible = groups.fits[:, window] & (complete_s <= end_s)
    return np.where(possible, complete_s + late_s - groups.late_s[:, None], NEVER)


def first_slots(groups: Groups, windows: Sequence[Window], count: int) -> list[Slot]:
    """The slots for `count` groups that end first if all groups take the average time: one per
    group, some more, and the first one of each window."""
    average_s = groups.average_s().tolist()
    done: list[tuple[float, Slot]] = []
    for n, window in enumerate(windows):
        length_s = average_s[window.kind]
        for order in range(1, 1 + (count if window.whole else 1)):
            begin_s = window.begin_s + (order - 1) * length_s
            done.append((begin_s + length_s, Slot(n, order, begin_s)))
    done.sort()
    enough = math.ceil(SPARE_SLOTS * count) + len(windows)
    return [slot for at, (_, slot) in enumerate(done) if at < enough or slot.order == 1]


def first_in_first_out(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    return _in_turn(groups, windows, np.argsort(groups.submitted_at, kind="stable"))


def earliest_deadline_first(groups: Groups, windows: Sequence[Window]) -> list[Slot | None]:
    return _in_turn(groups, windows, np.argsort(groups.deadline_s, kind="stable"))


def _in_turn(
    groups: Groups,
    windows: Sequence[Window],
    turns: NDArray[np.intp],
    planned: Sequence[Slot | None] = (),
) -> list[Slot | None]:
    """Assigns each of these, after those that are planned, to the window that is free first, and
    among several to the one where it is fastest."""
    plan = list(planned) or [None] * len(groups.time_s)
    free_s = [window.begin_s for window in windows]
    orders = [0] * len(windows)
    for group, slot in enumerate(plan):
        if slot:
            end_s = slot.begin_s + float(groups.time_s[group, windows[slot.window].kind])
            free_s[slot.window] = max(free_s[slot.window], end_s)
            orders[slot.window] = max(orders[slot.window], slot.order)
    for group in turns.tolist():
        times_s = groups.time_s[group].tolist()
        open_to = [
            (free_s[n], times_s[window.kind], n)
            for n, window in enumerate(windows)
            if groups.fits[group, n]
            and free_s[n] + times_s[window.kind] <= window.end_s
            and (window.whole or not orders[n])
        ]
        if open_to:
            begin_s, time_s, n = min(open_to)
            orders[n] += 1
            plan[group] = Slot(n, orders[n], begin_s)
            free_s[n] = begin_s + time_s
    return plan
