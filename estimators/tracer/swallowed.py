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
from typing import Any

from .answering import offline, own_place, place_of, text_of, what_went_wrong
from .recording import Recorder


class Swallowed:
    """`note`: what the script told of last; "" if nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self.note = ""
        self._recorder = recorder
        self._at = 0  # operators until then

    @property
    def is_last(self) -> bool:
        """Whether no operator has run on the GPU since the error was logged."""
        return bool(self.note) and self._recorder.operators <= self._at

    def install(self) -> None:
        told: Any = traceback.TracebackException
        logger: Any = logging.Logger
        make, handle, show = told.__init__, logger.handle, print

        @functools.wraps(make)
        def init(self_: Any, kind: Any, error: Any, *args: Any, **kwargs: Any) -> None:
            self._note_error(error)
            make(self_, kind, error, *args, **kwargs)

        def handle_(self_: Any, record: Any) -> None:
            if record.levelno >= logging.ERROR:
                self._note_error(sys.exc_info()[1])
            handle(self_, record)

        @functools.wraps(show)
        def print_(*args: Any, **kwargs: Any) -> None:
            error = sys.exc_info()[1]
            said = text_of(error) if error is not None else ""
            if any(arg is error or (isinstance(arg, str) and said and said in arg) for arg in args):
                self._note_error(error)
            show(*args, **kwargs)

        told.__init__, logger.handle = init, handle_
        builtins.print = print_

    def note_network(self) -> None:
        """Call this where a connection is refused."""
        self._note("the network was asked", own_place(sys._getframe(1)), "a trace has none")

    def _note_error(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            place = place_of(error)
            what = what_went_wrong(error)[len(f"{place}: ") :]
            self._note("an error was logged", place, f"{what}{offline(error)}")

    def _note(self, what: str, place: str, why: str) -> None:
        if place:
            self.note = f"{what} at {place} before an optimizer step: {why}"
            self._at = self._recorder.operators
