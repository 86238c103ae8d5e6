"""What waits for the core's thread. Users are served in turn, by the jobs that their requests touch
(deficit round robin), so that nobody waits for another's thousands."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from carmad.core.messages import Event

MOST_AT_ONCE = 256  # deliveries of the world per batch: questions are answered between batches
QUANTUM = 64  # jobs of a user per turn: a step with so many takes some 10 ms


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

    def serve(self) -> Iterator[Delivery]:
        self.credit += QUANTUM
        while self.waiting and self.waiting[0].weight <= self.credit:
            self.credit -= self.waiting[0].weight
            yield self.waiting.popleft()


class Backlog:
    def __init__(self) -> None:
        self._world: deque[Delivery] = deque()
        self._new: OrderedDict[int, _Lane] = OrderedDict()  # of users who have not had a turn yet
        self._old: OrderedDict[int, _Lane] = OrderedDict()  # the first is next
        self._old_wait = False  # the last batch was for the new ones alone

    def __bool__(self) -> bool:
        return bool(self._world or self._new or self._old)

    def put(self, delivery: Delivery) -> None:
        user = delivery.user
        if user is None:
            self._world.append(delivery)
        else:
            lanes = self._old if user in self._old else self._new
            lanes.setdefault(user, _Lane()).waiting.append(delivery)

    def take(self, now: float) -> list[Delivery]:
        """A batch: what the world has told; and a turn for everybody who has come since the last
        one, or else, and at every second time, turns of the others up to one quantum. What waited
        for its turn happens now."""
        most = min(len(self._world), MOST_AT_ONCE)
        batch = [self._world.popleft() for _ in range(most)]
        new, self._new, later = self._new, OrderedDict(), OrderedDict[int, _Lane]()
        left = 0 if new and not self._old_wait else QUANTUM
        self._old_wait = not left and bool(self._old)
        while new or (self._old and left > 0):
            lanes = new or self._old
            user, lane = lanes.popitem(last=False)
            served = list(lane.serve())
            batch += (_at(now, each) for each in served)
            if lanes is self._old:
                left -= sum(each.weight for each in served)
            if lane.waiting:
                later[user] = lane
        self._old |= later
        return batch

    def rest(self, now: float) -> list[Delivery]:
        found: list[Delivery] = []
        while self:
            found += self.take(now)
        return found


def _at(now: float, delivery: Delivery) -> Delivery:
    """The core is told everything in order of time."""
    return replace(delivery, events=tuple(replace(each, at=now) for each in delivery.events))
