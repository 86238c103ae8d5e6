"""The only way into the core's thread: events to handle, and questions to answer in between."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from carmad.core.messages import Event
from carmad.core.scheduler import Scheduler
from carmad.core.types import JobId
from carmad.engine.backlog import Backlog, Delivery
from carmad.engine.clock import Clock
from carmad.errors import CarmaError

T = TypeVar("T")


class Stopping(CarmaError):
    def __init__(self) -> None:
        super().__init__("carmad is stopping", "Running jobs continue; try again later.")


@dataclass(frozen=True, slots=True)
class Question:
    ask: Callable[[Scheduler], Any]
    answer: Future[Any]


class Inbox:
    def __init__(self, clock: Clock, next_id: int) -> None:
        self.clock = clock
        self._queue: queue.SimpleQueue[Delivery | Question | None] = queue.SimpleQueue()
        self._backlog = Backlog()  # taken from the queue, for a later batch
        self._next_id = next_id
        self._ids = threading.Lock()
        self._refuses = False

    def next_ids(self, n: int) -> JobId:
        """Reserve `n` consecutive ids; returns the first. Unused ones leave a gap."""
        with self._ids:
            first = self._next_id
            self._next_id += n
        return JobId(first)

    def post(self, *events: Event, user: int | None = None) -> None:
        """Send events from the world. They are kept until they can be committed. `user`: whose
        request they follow from, and whose turn it takes."""
        self._queue.put(Delivery(events, None, user))

    def request(self, *events: Event, user: int | None = None, weight: int = 1) -> Future[None]:
        """Send a user's request, which touches so many jobs. The future is done when it is durable,
        or has the CarmaError that prevented it."""
        done: Future[None] = Future()
        self._put(Delivery(events, done, user, weight))
        return done

    def ask(self, question: Callable[[Scheduler], T]) -> Future[T]:
        """Run `question` in the core's thread. It must be quick and change nothing."""
        answer: Future[T] = Future()
        self._put(Question(question, answer))
        return answer

    def _put(self, item: Delivery | Question) -> None:
        self._queue.put(item)
        if self._refuses:
            self.refuse()

    def close(self) -> None:
        self._queue.put(None)

    def refuse(self) -> None:
        """Once nobody takes from it any more: refuse what is left, and whatever comes later."""
        self._refuses = True
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Question):
                    item.answer.set_exception(Stopping())
                elif item is not None and item.done is not None:
                    item.done.set_exception(Stopping())

    def take(self, timeout_s: float) -> tuple[list[Delivery], list[Question], bool]:
        """A batch of deliveries, all questions, and whether the inbox is open. Waits for a first
        item. The last batch has everything that is left."""
        backlog, questions, open = self._backlog, list[Question](), True
        with contextlib.suppress(queue.Empty):
            item = self._queue.get(timeout=0 if backlog else timeout_s)
            while item is not None:
                if isinstance(item, Delivery):
                    backlog.put(item)
                else:
                    questions.append(item)
                item = self._queue.get_nowait()
            open = False
        taken = backlog.take if open else backlog.rest
        return taken(self.clock()), questions, open
