"""Asking until there is an answer, across restarts of who answers."""

from __future__ import annotations

import time

from cli.problems import Unreachable

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


def despite(
    ask: Callable[[], T], say: Callable[[str], None] = lambda _: None, every_s: float = 1.0
) -> T:
    """The answer, however long nobody can be reached. `say` is told why there is none yet."""
    said = ""
    while True:
        try:
            return ask()
        except Unreachable as error:
            if said != error.message:
                said = error.message
                say(said)
            time.sleep(every_s)
