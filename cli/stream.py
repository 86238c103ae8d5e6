"""The daemon's stream of events, for commands."""

from __future__ import annotations

from carma_client import stream
from carma_client.steps import iterate
from carma_client.transport import Daemon

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def events(broken: Callable[[str], None] = lambda why: None, **query: object) -> Iterator[Any]:
    """The events, from a first one called `watching`, until all selected jobs have ended. If the
    daemon stops, `broken` is called, and the stream goes on after the last event once it is back.
    """
    return iterate(stream.events(Daemon(), broken, **query))
