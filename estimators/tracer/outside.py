"""Notices when a script turns to the world outside of its process: from then on what it finds may
differ from a real run.

Programs that it starts can write nothing, workers do not answer, and there are no sockets. It may
go on without them, and fail later for a reason that no longer shows.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Callable

from .answering import is_own

_LOOKS = frozenset(("git", what) for what in ("rev-parse", "describe", "log"))
_BETWEEN = (__file__, os.__file__, subprocess.__file__)


def watch(notice: Callable[[], None]) -> None:
    """Call `notice` each time. Programs that libraries start, to ask the machine something, do not
    count."""

    def told(function: Callable[..., Any], by_anyone: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if by_anyone or _called_by_script(sys._getframe(1)):
                if any(map(_only_looks, args)):
                    return _or_noticed(function, notice, args, kwargs)
                notice()
            return function(*args, **kwargs)

        return call

    for name in ("system", "popen", "posix_spawn", "posix_spawnp"):
        setattr(os, name, told(getattr(os, name), by_anyone=False))
    for name in ("fork", "forkpty"):
        setattr(os, name, told(getattr(os, name), by_anyone=True))
    subprocess.Popen.__init__ = told(subprocess.Popen.__init__, False)  # type: ignore[method-assign]
    BaseProcess.start = told(BaseProcess.start, True)  # type: ignore[method-assign]
    make = socket.socket.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) < 4 and kwargs.get("fileno") is None:  # not one of a pair that exists
            notice()
        make(self, *args, **kwargs)

    socket.socket.__init__ = init  # type: ignore[method-assign]


def _only_looks(command: Any) -> bool:
    """Whether it asks git which version of the program this is, as many scripts do to log it:
    which needs to write nothing."""
    if isinstance(command, str) and not set("|&;<>$`()\n") & set(command):
        command = command.split()
    return isinstance(command, (list, tuple)) and tuple(command[:2]) in _LOOKS


def _or_noticed(
    function: Callable[..., Any], notice: Callable[[], None], args: Any, kwargs: Any
) -> Any:
    try:
        return function(*args, **kwargs)
    except OSError:  # where Landlock is missing no program starts
        notice()
        raise


def _called_by_script(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return frame is not None and (is_own(frame) or "GPUtil" in frame.f_code.co_filename)
