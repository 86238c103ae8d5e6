"""Errors that a script handles and tells of, by `logging`, `traceback` or `print`, itself or by a
decorator of a library; and questions to the network, which a trace has not got.

In a trace such an error may have another reason than in a real run, and what a script does after it
may be less. So the last one is told if the script then ends without an optimizer step.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import traceback
from typing import Any, Callable

from .answering import offline, own_place, place_of, text_of, what_went_wrong


class Swallowed:
    def __init__(self, count: Callable[[], int]) -> None:
        """`count`: how many operators have run on the GPU."""
        self._count = count
        self._what = self._why = ""
        self._at = 0

    @property
    def note(self) -> str:
        """What the script told of last; "" if nothing."""
        return f"{self._what}: {self._why}" if self._what else ""

    @property
    def refusal(self) -> str:
        """The same if nothing has run on the GPU after it; else ""."""
        if not self._what or self._count() > self._at:
            return ""
        return f"{self._what}; what follows is unknown: {self._why}"

    def install(self) -> None:
        told: Any = traceback.TracebackException
        logger: Any = logging.Logger
        make, handle, show = told.__init__, logger.handle, print

        @functools.wraps(make)
        def init(self_: Any, kind: Any, error: Any, *args: Any, **kwargs: Any) -> None:
            self._note(error)
            make(self_, kind, error, *args, **kwargs)

        def handle_(self_: Any, record: Any) -> None:
            if record.levelno >= logging.ERROR:
                self._note(sys.exc_info()[1])
            handle(self_, record)

        @functools.wraps(show)
        def print_(*args: Any, **kwargs: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and any(_tells(arg, error) for arg in args):
                self._note(error)
            show(*args, **kwargs)

        told.__init__, logger.handle = init, handle_
        builtins.print = print_

    def note_network(self) -> None:
        """Call this where a connection is refused."""
        place = own_place(sys._getframe(1))
        if place:
            self._set(f"the network was asked at {place}", "a trace has none")

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and (place := place_of(error)):
            what = what_went_wrong(error)[len(f"{place}: ") :]
            self._set(f"an error was logged at {place}", f"{what}{offline(error)}")

    def _set(self, what: str, why: str) -> None:
        self._what, self._why = f"{what} before an optimizer step", why
        self._at = self._count()


def _tells(arg: Any, error: BaseException) -> bool:
    said = text_of(error)
    return arg is error or (isinstance(arg, str) and bool(said) and said in arg)
