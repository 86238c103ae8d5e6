"""The loop body that the daemon and the simulator share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from carmad.core.messages import Action, Event, Step
from carmad.core.scheduler import Scheduler


def turn(
    scheduler: Scheduler,
    store: Store,
    world: World,
    *events: Event,
    handled: Callable[[], None] = lambda: None,
    committed: Callable[[Step], None] = lambda step: None,
    refused: Callable[[Step], None] = lambda step: None,
) -> None:
    """Handle a batch of events (then call `handled`): commit, then notify, then act. If the commit
    fails, `refused` gets the step, and nothing else is done."""
    step = scheduler.handle(*events)
    handled()
    try:
        store.commit(step)
    except Exception:
        refused(step)
        raise
    committed(step)
    for action in step.actions:
        world.perform(action)


class Store(Protocol):
    """Makes a step durable: all of it, or, if it raises, nothing."""

    def commit(self, step: Step) -> None: ...


class World(Protocol):
    """Carries out actions. Their outcomes come back later, as events."""

    def perform(self, action: Action) -> None: ...
