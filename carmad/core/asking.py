"""Calls to plugins in a step: how many of each kind, and which failed.

Whether a call fails does not follow from the inputs, since a plugin may time out. A replay needs
the recorded failures to reproduce a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from carmad.core.messages import Failure

T = TypeVar("T")

ORDER, PLAN, PREDICT, DECIDE = "order", "plan", "predict", "decide"
FALLBACK = "fallback's "  # before ORDER and PLAN


class Asked:
    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._failures: list[Failure] = []

    def ask(self, question: str, put: Callable[[], T]) -> T:
        """Call `put`, counting the call and recording its failure, which is raised."""
        self._numbers[question] += 1
        try:
            return put()
        except Exception as error:
            self._failures.append(Failure(question, self._numbers[question], said(error)))
            raise

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures)

    def forget(self) -> None:
        self._numbers.clear()
        self._failures.clear()


def said(error: Exception) -> str:
    return f"{error!r:.200}"
