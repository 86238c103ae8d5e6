"""The loop body that the daemon and the simulator share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from carmad.core.messages import Event, Step
from carmad.core.ports import Store, World
from carmad.core.scheduler import Scheduler
from carmad.errors import CarmaError


class Follower:
    """Follows what the core does, in its thread. By default it ignores everything."""

    __slots__ = ()

    def hear(self, events: Sequence[Event]) -> None:
        """The core is about to handle these."""

    def on_timing(self, step: Step, core_s: float, commit_s: float) -> None:
        """How long it took the core to make this step, and the store to write it."""

    def on_commit(self, step: Step) -> None:
        """This step is on disk. If this raises, `on_reset` is called."""

    def on_failed_commit(self, error: CarmaError) -> None:
        """Events could not be committed, and will be retried: the disk is full."""

    def on_reset(self) -> None:
        """Steps may be missing: the core was reset to what is on disk."""


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
