"""The one loop body: the daemon and the simulator both run exactly this."""

from __future__ import annotations

from collections.abc import Callable

from carmad.core.messages import Event, Step
from carmad.core.ports import Store, World
from carmad.core.scheduler import Scheduler


def turn(
    scheduler: Scheduler,
    store: Store,
    world: World,
    *events: Event,
    committed: Callable[[Step], None] = lambda step: None,
    refused: Callable[[Step], None] = lambda step: None,
) -> None:
    """Handle a batch of events: commit, then tell, then act. What is not committed is no fact:
    `refused` is told of a step that the store did not take."""
    step = scheduler.handle(*events)
    try:
        store.commit(step)
    except Exception:
        refused(step)
        raise
    committed(step)
    for action in step.actions:
        world.perform(action)
