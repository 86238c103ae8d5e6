"""The client for asyncio."""

from __future__ import annotations

import _socket
import asyncio
import os
from typing import TYPE_CHECKING, Any, AsyncIterator, TypeVar

from carma_client import logs, requests
from carma_client.steps import BLOCK, Found, Receive, Send, Sleep, Step, resume
from carma_client.transport import TIMEOUT_S, Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Unpack

    from carma_client.options import Options
    from carma_client.steps import Steps
    from carmad.api.actions import ResultOut
    from carmad.api.events import EventOut
    from carmad.api.job import JobOut

T = TypeVar("T")


async def run(steps: Steps[T]) -> T:
    """The result of the steps."""
    try:
        step = next(steps)
        while True:
            step = resume(steps, await _try(step))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


class Iterated(AsyncIterator[T]):
    """What the steps find. Whoever is cancelled while waiting for the next has missed nothing: the
    step that was interrupted is repeated."""

    def __init__(self, steps: Steps[None]) -> None:
        self._steps = steps
        self._step: Step | None = None  # under way

    async def __anext__(self) -> T:
        try:
            step = self._step or next(self._steps)
            while not isinstance(step, Found):
                self._step = step
                result = await _try(step)
                self._step = None
                step = resume(self._steps, result)
        except StopIteration:
            raise StopAsyncIteration from None
        found: T = step.value
        return found

    async def aclose(self) -> None:
        self._steps.close()


async def _try(step: Step) -> bytes | OSError | None:
    try:
        return await _perform(step)
    except OSError as error:
        return error


async def _perform(step: Step) -> bytes | None:
    """If cancelled, it can be done again: nothing is received before it is returned, and what has
    been sent is not sent again."""
    loop = asyncio.get_running_loop()
    if isinstance(step, Sleep):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, Send):
        step.socket.setblocking(False)
        while step.data:
            try:
                step.data = step.data[step.socket.send(step.data) :]
            except BlockingIOError:
                await _ready(step.socket, step.within_s, loop.add_writer, loop.remove_writer)
    elif isinstance(step, Receive):
        step.socket.setblocking(False)
        while True:
            try:
                return step.socket.recv(BLOCK)
            except BlockingIOError:
                await _ready(step.socket, step.within_s, loop.add_reader, loop.remove_reader)
    return None


async def _ready(
    socket: _socket.socket, within_s: float, add: Callable[..., Any], remove: Callable[..., Any]
) -> None:
    ready = asyncio.Event()
    add(socket, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), within_s)
    except asyncio.TimeoutError:
        raise TimeoutError(f"nothing within {within_s:g} s") from None  # of Python 3.11: the same
    finally:
        remove(socket)


class AsyncClient(Daemon):
    """As `carma_client.Client`, for asyncio. Whatever is awaited can be cancelled at any time: a
    submission may then have been received or not."""

    async def get(self, path: str, within_s: float = TIMEOUT_S, **query: object) -> Any:
        return await run(self.ask(path, within_s, **query))

    async def post(
        self, path: str, body: object, within_s: float = TIMEOUT_S, *, again: bool = False
    ) -> Any:
        return await run(self.tell(path, body, within_s, again=again))

    async def submit(
        self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[Options]
    ) -> str:
        return await run(requests.submit(self, argv, options))

    async def job(self, label: str) -> JobOut:
        job: JobOut = await self.get(requests.job_path(label))
        return job

    async def jobs(
        self,
        select: str | Iterable[str] | None = None,
        *,
        user: str | None = None,
        states: str | None = None,
    ) -> list[JobOut]:
        return await run(requests.list_jobs(self, select, user, states))

    async def wait(self, label: str) -> JobOut:
        ended: JobOut = await run(requests.wait(self, label))
        return ended

    async def cancel(self, *labels: str) -> list[ResultOut]:
        return await run(requests.act(self, "cancel", labels))

    async def hold(self, *labels: str) -> list[ResultOut]:
        return await run(requests.act(self, "hold", labels))

    async def release(self, *labels: str) -> list[ResultOut]:
        return await run(requests.act(self, "release", labels))

    async def requeue(self, *labels: str) -> list[ResultOut]:
        return await run(requests.act(self, "requeue", labels))

    def logs(self, label: str, *, follow: bool = False, stderr: bool = False) -> Iterated[str]:
        return Iterated(logs.lines(self, label, follow, stderr))

    def events(
        self,
        select: str | None = None,
        *,
        user: str | None = None,
        since: str | None = None,
        broken: Callable[[str], None] = lambda why: None,
    ) -> Iterated[EventOut]:
        return Iterated(requests.events(self, broken, select=select, user=user, since=since))
