"""Virtual time: a queue of calls, independent of jobs and GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Order(IntEnum):
    """Priority within one instant: departures make room for arrivals."""

    ENDS = 0
    BEGINS = 1
    REST = 2


class Clock:
    """Calls with the same instant and order are made in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = -math.inf
        self._calls = 0
        self._due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []

    def call_at(self, at: float, order: Order, act: Callable[..., None], *subject: Any) -> None:
        """Schedule `act(*subject)` for `at`, which must not be in the past."""
        self._calls += 1
        heappush(self._due, (at, order, self._calls, act, subject))

    def advance(self) -> bool:
        """Go to the next instant and make all calls due then. False if there are none."""
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

    Rounding may make the sum slightly too small, and then nothing would check again.
    """
    at = since + max(0.0, span_s - before_s)
    while before_s + (at - since) < span_s:
        at = math.nextafter(at, math.inf)
    return at
