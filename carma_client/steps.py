"""How the client talks to the daemon, whether it may block or not.

What is to be done is written once, as a generator of steps. This module carries them out and blocks
meanwhile; `carma_client.aio` does so in an event loop. Imports stay light.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    import _socket
    from collections.abc import Generator
    from typing import Any, TypeVar

    T = TypeVar("T")
    Steps = Generator["Step", Any, T]

BLOCK = 65536


class Step:
    """Its result is sent back into the generator, an OSError is thrown into it."""

    __slots__ = ()


class Sleep(Step):
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Send(Step):
    """Send all of `data`, on a socket that does not block; with each part within `within_s`."""

    __slots__ = ("data", "socket", "within_s")

    def __init__(self, socket: _socket.socket, data: bytes, within_s: float) -> None:
        self.socket = socket
        self.data = memoryview(data)
        self.within_s = within_s


class Receive(Step):
    """Up to BLOCK bytes; none if the other side is done."""

    __slots__ = ("socket", "within_s")

    def __init__(self, socket: _socket.socket, within_s: float) -> None:
        self.socket = socket
        self.within_s = within_s


class Found(Step):
    """Something for the caller, who may ask for more."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def run(steps: Steps[T]) -> T:
    """The result of the steps."""
    try:
        step = next(steps)
        while True:
            step = _on(steps, step)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def iterate(steps: Steps[None]) -> Generator[Any]:
    """What the steps find."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Found):
                yield step.value
                step = steps.send(None)
            else:
                step = _on(steps, step)
    except StopIteration:
        return
    finally:
        steps.close()


def _on(steps: Steps[Any], step: Step) -> Step:
    """Carry out a step. Returns the next one."""
    result: bytes | OSError | None
    try:
        result = _perform(step)
    except OSError as error:
        result = error
    return resume(steps, result)


def resume(steps: Steps[Any], result: bytes | OSError | None) -> Step:
    """The step after one with this result."""
    return steps.throw(result) if isinstance(result, OSError) else steps.send(result)


def _perform(step: Step) -> bytes | None:
    if isinstance(step, Sleep):
        time.sleep(step.seconds)
    elif isinstance(step, Send):
        step.socket.settimeout(step.within_s)
        while step.data:  # sendall would have one limit for all parts
            step.data = step.data[step.socket.send(step.data) :]
    elif isinstance(step, Receive):
        step.socket.settimeout(step.within_s)
        return step.socket.recv(BLOCK)
    return None
