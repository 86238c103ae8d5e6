"""The thread that owns the core and the store: batches of events in, committed steps out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from carmad.core.history import History
from carmad.core.messages import Action, Event, Sampled, Step
from carmad.core.ports import World
from carmad.core.scheduler import Scheduler
from carmad.daemon.inbox import Delivery, Inbox, Question
from carmad.errors import CarmaError
from carmad.loop import turn
from carmad.store.sql import SqlStore, StoreFull

log = logging.getLogger(__name__)

RETRY_S = 1.0
COMPLAIN_EVERY_S = 60.0


class Engine:
    """Runs until the inbox is closed. In this thread, `heard` is told what the core is about to be
    fed, `committed` every step, and `restored` that the core was put to what is on disk."""

    def __init__(
        self,
        inbox: Inbox,
        scheduler: Scheduler,
        store: SqlStore,
        world: World,
        committed: Callable[[Step], None],
        alive: Callable[[], None],
        restored: Callable[[], None] = lambda: None,
        heard: Callable[[Sequence[Event]], None] = lambda events: None,
    ) -> None:
        self._inbox = inbox
        self._scheduler = scheduler
        self._store = store
        self._world = world
        self._committed = committed
        self._alive = alive
        self._restored = restored
        self._heard = heard
        self._kept: list[Delivery] = []  # news that could not be committed yet
        self._complain_at = 0.0  # monotonic

    def restore(self, history: History | None = None) -> None:
        """Take over where the last daemon stopped, and do what it may have left undone."""
        for action in self._reload(history):
            self._world.perform(action)

    def run(self) -> None:
        go_on = True
        while go_on:
            deliveries, questions, go_on = self._inbox.take(timeout_s=RETRY_S)
            batch = [*self._kept, *deliveries]
            self._kept = []
            if batch:
                self._handle(batch)
            for question in questions:
                self._answer(question)
            self._alive()

    def _handle(self, batch: list[Delivery]) -> None:
        """One step for the whole batch; if that fails, one each, to find who is to blame."""
        self._alive()
        try:
            self._turn(batch)
        except StoreFull as error:  # nobody is to blame, and each try costs a reload
            self._reload()
            for delivery in batch:
                self._failed(delivery, error)
        except Exception as error:
            if not isinstance(error, CarmaError):
                log.exception("a batch of %d deliveries failed", len(batch))
            self._reload()
            if len(batch) > 1:
                for delivery in batch:
                    self._handle([delivery])
            else:
                self._failed(batch[0], error)

    def _turn(self, batch: list[Delivery]) -> None:
        def committed(step: Step) -> None:
            self._committed(step)
            for delivery in batch:
                if delivery.done:
                    delivery.done.set_result(None)

        events = [event for delivery in batch for event in delivery.events]
        self._heard(events)
        turn(self._scheduler, self._store, self._world, *events, committed=committed)

    def _failed(self, delivery: Delivery, error: Exception) -> None:
        if delivery.done:
            delivery.done.set_exception(error)
        elif isinstance(error, CarmaError):  # the disk is full: there will be room again
            self._complain(error)
            if not all(isinstance(event, Sampled) for event in delivery.events):
                self._kept.append(delivery)  # a fresh sample is worth more than an old one
        else:
            log.critical("dropped news that the core cannot handle: %.2000r", delivery.events)

    def _complain(self, error: CarmaError) -> None:
        """Not at every try: the log may be on that very disk."""
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_EVERY_S
            log.error("cannot record what happens: %s; %s", error, error.hint)

    def _reload(self, history: History | None = None) -> tuple[Action, ...]:
        """Put the core back to what is on disk: it may be ahead of a commit that failed. Its
        history stays, unless there is another."""
        saved = self._store.restore()
        owed = self._scheduler.restore(saved.jobs, saved.ended, saved.drains, history=history)
        self._restored()
        return owed

    def _answer(self, question: Question) -> None:
        try:
            question.answer.set_result(question.ask(self._scheduler))
        except Exception as error:  # noqa: BLE001 - whoever asked gets it
            question.answer.set_exception(error)
