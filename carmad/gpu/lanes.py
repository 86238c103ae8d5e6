"""Calls to a driver, each GPU's in a thread of its own: any of them may hang, and one that does
must not keep the others from being read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from carmad import beats
from carmad.threads import Threads

T = TypeVar("T")

ANSWER_WITHIN_S = 2.0
LATE_S = 10.0  # a driver without persistence takes seconds to wake its GPUs


@dataclass(frozen=True, slots=True)
class _Call:
    kind: str
    answer: Future[Any]


class Lanes:
    """Used by one thread at a time. A lane that hangs is not asked until it has answered."""

    def __init__(self) -> None:
        self._threads: dict[str, Threads] = {}
        self._under_way: dict[str, _Call] = {}

    def ask(self, kind: str, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The answers by lane: those that come in time, and late ones to the same kind of call.
        Raises what a call raises."""
        begun = []
        for lane, call in calls.items():
            earlier = self._under_way.get(lane)
            if earlier is None or (earlier.answer.done() and earlier.kind != kind):
                self._under_way[lane] = _Call(kind, self._thread(lane).submit(call))
                begun.append(self._under_way[lane].answer)
        wait(begun, ANSWER_WITHIN_S)
        return {
            lane: self._under_way.pop(lane).answer.result()
            for lane in calls
            if self._under_way[lane].answer.done() and self._under_way[lane].kind == kind
        }

    def hangs(self, lane: str) -> str:
        """The driver's function that it hangs in; "": it does not."""
        earlier = self._under_way.get(lane)
        if earlier is None or earlier.answer.done():
            return ""
        return beats.call_of(_name(lane)) or "a question"

    @property
    def any_hangs(self) -> bool:
        return any(not call.answer.done() for call in self._under_way.values())

    def close(self) -> None:
        """A thread that hangs ends when its call returns, if it does."""
        for lane, threads in self._threads.items():
            threads.shutdown(wait=not self.hangs(lane))
        self._threads.clear()
        self._under_way.clear()

    def _thread(self, lane: str) -> Threads:
        if lane not in self._threads:
            self._threads[lane] = Threads(1, _name(lane), LATE_S)
        return self._threads[lane]


def _name(lane: str) -> str:
    return f"nvml-{lane}"
