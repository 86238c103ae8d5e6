"""Virtual time: what happens next, in order. Nothing here knows what a job or a GPU is."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Order(IntEnum):
    """What comes first within one instant: whoever leaves makes room for whoever comes."""

    ENDS = 0
    BEGINS = 1
    REST = 2


class Clock:
    """Calls that are due at the same instant and are of the same order come as they were made."""

    def __init__(self) -> None:
        self.now = -math.inf
        self._calls = 0
        self._due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []

    def call_at(self, at: float, order: Order, act: Callable[..., None], *subject: Any) -> None:
        """Have `act(*subject)` called when it is `at`, which must not have passed."""
        self._calls += 1
        heappush(self._due, (at, order, self._calls, act, subject))

    def advance(self) -> bool:
        """Go to the next instant and do all that is due then. False: there is none."""
        due = self._due
        if not due:
            return False
        self.now = now = due[0][0]
        while due and due[0][0] == now:
            _, _, _, act, subject = heappop(due)
            act(*subject)
        return True


def not_before(since: float, span_s: float, before_s: float = 0.0) -> float:
    """The first instant at which `before_s + (at - since) >= span_s`, as the core computes it.

    The sum may be one rounding too early, and then nobody would look again.
    """
    at = since + max(0.0, span_s - before_s)
    while before_s + (at - since) < span_s:
        at = math.nextafter(at, math.inf)
    return at
