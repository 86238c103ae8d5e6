"""A cache for results about an immutable value."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

REMEMBERED = 256  # results per value


class Memo:
    """Cached results, which must depend only on the value that owns them and on the question."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def recall(self, question: Hashable, answer: Callable[..., T], *given: object) -> T:
        """`answer(*given)`, or its cached result."""
        known: T | None = self._answers.get(question)
        if known is None:
            if len(self._answers) >= REMEMBERED:
                self._answers.clear()
            known = self._answers[question] = answer(*given)
        return known
