"""The only way into the core's thread: events to handle, and questions to answer in between.

Users are served in turn, by the jobs that their requests touch (deficit round robin), so that
nobody waits for another's thousands.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from carmad.core.jobs.attempt import JobId
from carmad.core.messages import Event
from carmad.core.scheduler import Scheduler
from carmad.engine.clock import Clock
from carmad.errors import CarmaError

MOST_AT_ONCE = 256  # deliveries of the world per batch: questions are answered between batches
QUANTUM = 64  # jobs per batch: a step with so many takes some 10 ms
TURN = 16  # of them a user's at a time: who comes with little is in the next batch


@dataclass(frozen=True, slots=True)
class Delivery:
    """Events that belong together. `done` is None for events from the world, which are retried
    until they are handled. `user`: who pays for it, by `weight`; None: the world itself."""

    events: tuple[Event, ...]
    done: Future[None] | None
    user: int | None = None
    weight: int = 1


@dataclass(slots=True)
class _Lane:
    """What one user waits for."""

    waiting: deque[Delivery] = field(default_factory=deque)
    credit: int = 0
    is_new: bool = True  # it has not had a turn yet

    def serve(self) -> Iterator[Delivery]:
        self.is_new = False
        self.credit += TURN
        while self.waiting and self.waiting[0].weight <= self.credit:
            self.credit -= self.waiting[0].weight
            yield self.waiting.popleft()


class Backlog:
    def __init__(self) -> None:
        self._world: deque[Delivery] = deque()
        self._lanes: OrderedDict[int, _Lane] = OrderedDict()  # by user; the first is next

    def __bool__(self) -> bool:
        return bool(self._world or self._lanes)

    def put(self, delivery: Delivery) -> None:
        if delivery.user is None:
            self._world.append(delivery)
        else:
            self._lanes.setdefault(delivery.user, _Lane()).waiting.append(delivery)

    def take(self, now: float) -> list[Delivery]:
        """A batch: what the world has told, and turns of users up to one quantum, first of those
        who have had none. What waited for its turn happens now."""
        most = min(len(self._world), MOST_AT_ONCE)
        batch = [self._world.popleft() for _ in range(most)]
        left = QUANTUM
        self._lanes = OrderedDict(sorted(self._lanes.items(), key=lambda lane: not lane[1].is_new))
        while self._lanes and left > 0:
            user, lane = self._lanes.popitem(last=False)
            for each in lane.serve():
                batch.append(_at(now, each))
                left -= each.weight
            if lane.waiting:
                self._lanes[user] = lane
        return batch

    def rest(self, now: float) -> list[Delivery]:
        found: list[Delivery] = []
        while self:
            found += self.take(now)
        return found


def _at(now: float, delivery: Delivery) -> Delivery:
    """The core is told everything in order of time."""
    return replace(delivery, events=tuple(replace(each, at=now) for each in delivery.events))


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
