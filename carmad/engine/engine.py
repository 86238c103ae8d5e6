"""The thread that owns the core and the store: batches of events in, committed steps out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from carmad import beats
from carmad.core.jobs.attempt import FOR_GOOD, Cause, Exit, JobId
from carmad.core.jobs.history import History
from carmad.core.messages import (
    Action,
    CancelRequested,
    Closing,
    Exited,
    Sampled,
    Step,
    Stop,
    Submitted,
    Tick,
)
from carmad.core.scheduler import Scheduler
from carmad.edge import Follower
from carmad.engine.inbox import Delivery, Inbox, Question
from carmad.errors import CarmaError
from carmad.guards import log_failures_of
from carmad.loop import World, turn
from carmad.store.database import StoreFull
from carmad.store.sql import SqlStore

log = logging.getLogger(__name__)

RETRY_S = 1.0
RETRY_END_S = 60.0  # for the end of an attempt that the core cannot handle
TICK_S = 2.0  # longer than a monitor's usual period, so that a tick is seldom needed
TOGETHER_S = 0.1  # submissions behind others that wait are planned together, so much later
COMPLAIN_EVERY_S = 60.0
LATE_S = 15.0


class Engine:
    """Runs until the inbox is closed. Without other events, the core gets ticks.

    While the disk is full, jobs can be stopped for good without a commit, since that may free
    space; the attempt itself keeps the cause until its end can be recorded.
    """

    def __init__(
        self,
        inbox: Inbox,
        scheduler: Scheduler,
        store: SqlStore,
        world: World,
        followers: Sequence[Follower] = (),
    ) -> None:
        self._inbox = inbox
        self._scheduler = scheduler
        self._store = store
        self._world = world
        self._followers = followers
        self._tick_at = time.monotonic() + TICK_S
        self._kept: list[Delivery] = []  # events that could not be committed yet
        self._keep_until = 0.0  # monotonic; when they are retried, unless a request comes
        self._stuck: list[Delivery] = []  # ends of attempts on which the core raised, one each
        self._stuck_until = 0.0  # monotonic
        self._stopped: dict[JobId, int] = {}  # attempts stopped without a commit
        self._complain_at = 0.0  # monotonic

    def restore(self, history: History | None = None) -> None:
        """Continue where the last daemon stopped, and do what it may have left undone."""
        for action in self._reload(history):
            self._world.perform(action)

    def run(self) -> None:
        with beats.beating("engine", LATE_S, fatal=True):
            self._run()

    def _run(self) -> None:
        go_on = True
        while go_on:
            beats.idle()
            left_s = max(0.0, self._tick_at - time.monotonic())
            deliveries, questions, go_on = self._inbox.take(timeout_s=min(left_s, RETRY_S))
            beats.at(f"{len(questions)} questions")
            batch = [*self._kept, *deliveries]
            self._kept = []
            if time.monotonic() >= self._tick_at:
                batch.append(Delivery((Tick(self._inbox.clock()),), None))
            if not go_on or self._due(batch):
                self._handle(batch)
            else:
                self._kept = [each for each in batch if not _transient(each)]
            self._try_stuck()
            for question in questions:
                self._answer(question)
        self._handle([Delivery((Closing(self._inbox.clock()),), None)])

    def _due(self, batch: list[Delivery]) -> bool:
        """Whether to try now: always for a request, but a full disk is not retried at every
        sample."""
        return any(each.done for each in batch) or time.monotonic() >= self._keep_until

    def _handle(self, batch: list[Delivery]) -> None:
        """One step for the whole batch; if that fails, one per delivery, to find the culprit."""
        if not batch:
            return
        beats.at(f"a batch of {len(batch)} deliveries")
        stops: list[Stop] = []
        try:
            self._turn(batch, stops)
        except StoreFull as error:  # no delivery is to blame, and each try costs a reload
            self._reload()
            self._keep_until = time.monotonic() + RETRY_S
            self._stop_uncommitted(stops)
            for delivery in batch:
                self._fail(delivery, error)
        except Exception as error:
            if not isinstance(error, CarmaError):
                log.exception("a batch of %d deliveries failed", len(batch))
            self._reload()
            if len(batch) > 1:
                for delivery in batch:
                    self._handle([delivery])
            else:
                self._fail(batch[0], error)

    def _turn(self, batch: list[Delivery], stops: list[Stop]) -> None:
        """If the step is not committed, `stops` gets its final stops."""
        began = made = 0.0

        def note_handling() -> None:
            nonlocal made
            made = time.perf_counter()

        def note_commit(step: Step) -> None:
            self._stopped.clear()
            self._keep_until = 0.0
            self._notify(step, made - began, time.perf_counter() - made)
            for delivery in batch:
                if delivery.done:
                    delivery.done.set_result(None)

        def note_refusal(step: Step) -> None:
            for action in step.actions:
                if isinstance(action, Stop) and action.job.stop in FOR_GOOD:
                    stops.append(action)

        events = [event for delivery in batch for event in delivery.events]
        planned = not all(isinstance(event, Submitted) for event in events)
        if planned:
            self._tick_at = time.monotonic() + TICK_S
        for follower in self._followers:
            with log_failures_of(follower):
                follower.hear(events)
        others_wait = bool(self._scheduler.state.ledger.line())
        began = time.perf_counter()
        turn(
            self._scheduler,
            self._store,
            self._world,
            *events,
            handled=note_handling,
            committed=note_commit,
            refused=note_refusal,
        )
        if not planned:  # now that they know that their jobs are safe
            due_at = time.monotonic() + (TOGETHER_S if others_wait else 0.0)
            self._tick_at = min(self._tick_at, due_at)

    def _notify(self, step: Step, core_s: float, commit_s: float) -> None:
        """Errors here are only logged: the step is committed. Who has missed it is reset."""
        for follower in self._followers:
            has_heard = False
            with log_failures_of(follower):
                follower.on_timing(step, core_s, commit_s)
                follower.on_commit(step)
                has_heard = True
            if not has_heard:
                self._reset(follower)

    def _reset(self, follower: Follower) -> None:
        with log_failures_of(follower):
            follower.on_reset(self._scheduler.jobs.rows.values())

    def _stop_uncommitted(self, stops: Sequence[Stop]) -> None:
        """Carry out each stop once, although every retry of the step repeats it."""
        for stop in stops:
            if self._stopped.get(stop.job.id) != stop.job.attempt:
                self._stopped[stop.job.id] = stop.job.attempt
                self._world.perform(stop)

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        if isinstance(error, StoreFull) and delivery.done and self._is_done(delivery):
            delivery.done.set_result(None)
            if not _cancels(delivery) <= set().union(*map(_cancels, self._kept)):
                self._kept.append(Delivery(delivery.events, None))
        elif delivery.done:
            delivery.done.set_exception(error)
        elif isinstance(error, CarmaError):  # the disk is full: retry later
            self._complain(error)
            if not _transient(delivery):
                self._kept.append(delivery)
        else:
            self._keep_ends(delivery)

    def _keep_ends(self, delivery: Delivery) -> None:
        """Keep the ends of attempts among events on which the core raised: retry them bare, and if
        they fail again, once a minute. A job whose end is lost would hold its GPUs for good."""
        bare = _bare_ends(delivery)
        if bare == list(delivery.events):
            log.critical("the core cannot handle the end of an attempt: %.2000r", delivery.events)
            self._stuck.append(delivery)
            self._stuck_until = time.monotonic() + RETRY_END_S
        else:
            log.critical("dropped events that the core cannot handle: %.2000r", delivery.events)
            self._kept += [Delivery((end,), None) for end in bare]

    def _try_stuck(self) -> None:
        if self._stuck and time.monotonic() >= self._stuck_until:
            stuck, self._stuck = self._stuck, []
            for delivery in stuck:
                self._handle([delivery])

    def _is_done(self, delivery: Delivery) -> bool:
        """Whether the whole request has been carried out, though it is not on disk yet."""
        cancelled = _cancels(delivery)
        return len(cancelled) == len(delivery.events) and cancelled <= self._stopped.keys()

    def _complain(self, error: CarmaError) -> None:
        """Log it, but not at every try: the log may be on the same disk."""
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_EVERY_S
            log.error("cannot record events: %s; %s", error, error.hint)
            for follower in self._followers:
                with log_failures_of(follower):
                    follower.on_failed_commit(error)

    def _reload(self, history: History | None = None) -> tuple[Action, ...]:
        """Reset the core to what is on disk: after a failed commit, it may be ahead of it. Its
        history stays, unless another one is given."""
        saved = self._store.restore()
        owed = self._scheduler.restore(
            saved.jobs,
            saved.ended,
            saved.drains,
            history=history,
            accounts=saved.accounts,
            limits=saved.limits,
            reservations=saved.reservations,
        )
        for follower in self._followers:
            self._reset(follower)
        return owed

    def _answer(self, question: Question) -> None:
        try:
            question.answer.set_result(question.ask(self._scheduler))
        except Exception as error:  # noqa: BLE001 - passed on to the caller
            question.answer.set_exception(error)


def _transient(delivery: Delivery) -> bool:
    """Whether it has only samples and ticks, which newer ones will replace."""
    return all(isinstance(event, Sampled | Tick) for event in delivery.events)


def _bare_ends(delivery: Delivery) -> list[Exited]:
    """The ends of attempts, without the details on which the core may have failed."""
    return [
        replace(event, exit=Exit(Cause.FAILURE, event.exit.code, event.exit.signal))
        for event in delivery.events
        if isinstance(event, Exited)
    ]


def _cancels(delivery: Delivery) -> set[JobId]:
    return {event.job for event in delivery.events if isinstance(event, CancelRequested)}
