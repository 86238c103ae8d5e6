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
) -> None:
    """Handle a batch of events: commit, then tell, then act. What is not committed is no fact."""
    step = scheduler.handle(*events)
    store.commit(step)
    committed(step)
    for action in step.actions:
        world.perform(action)
