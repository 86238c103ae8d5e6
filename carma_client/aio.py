"""The client for asyncio: `carma_client.Client` in threads.

One thread follows the daemon's events for all waits; each iterator has a thread of its own;
everything else takes one of the event loop's threads while it lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Generator
from concurrent import futures
from functools import partial, wraps
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from carma_client import Problem
from carma_client.client import Client, job_path
from carma_client.transport import LOOK_S, RESTARTED_WITHIN_S, Connection, is_away
from carmad.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from typing_extensions import Concatenate, ParamSpec

    from carmad.api.events import EventOut
    from carmad.api.job import JobOut

    P = ParamSpec("P")

T = TypeVar("T")

AGAIN_S = 2.0  # if the events cannot be followed

Loop = asyncio.AbstractEventLoop
Asked = SimpleQueue["futures.Future[Any] | None"]  # None: nothing more will be


def in_thread(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method, in one of the event loop's threads."""

    @wraps(method)
    async def ask(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, client._client, *args, **kwargs)

    return ask


def iterate(
    method: Callable[Concatenate[Client, P], Generator[T, None, None]],
) -> Callable[Concatenate[AsyncClient, P], Iterated[T]]:
    """The method, in a thread of its own."""

    @wraps(method)
    def begin(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterated[T]:
        return Iterated(client._client, method, args, kwargs)

    return begin


class AsyncClient:
    """As `carma_client.Client`, for asyncio. Whatever is awaited can be cancelled at any time: what
    was asked may then have been done or not."""

    def __init__(self, socket: str | None = None) -> None:
        self._client = Client(socket)
        self._ends: weakref.WeakKeyDictionary[Loop, Ends] = weakref.WeakKeyDictionary()

    get = in_thread(Client.get)
    post = in_thread(Client.post)
    submit = in_thread(Client.submit)
    job = in_thread(Client.job)
    jobs = in_thread(Client.jobs)
    cancel = in_thread(Client.cancel)
    hold = in_thread(Client.hold)
    release = in_thread(Client.release)
    requeue = in_thread(Client.requeue)
    logs = iterate(Client.logs)
    events = iterate(Client.events)

    async def wait(self, label: str) -> JobOut:
        path = f"{job_path(label)}/wait"
        job: JobOut = await self.get(path, timeout_s=0)
        if job["state"] in ENDED:
            return job
        ends = self._ends.setdefault(asyncio.get_running_loop(), Ends(self._client))
        with ends.follow(label) as news:
            while job["state"] not in ENDED:
                await news.wait()
                news.clear()
                if ends.error is not None:
                    raise ends.error
                job = await self._ask_patiently(path)
        return job

    async def _ask_patiently(self, path: str) -> Any:
        """As `Client.patiently`."""
        until = time.monotonic() + RESTARTED_WITHIN_S
        while True:
            try:
                return await self.get(path, timeout_s=0)
            except Problem as error:
                if not is_away(error) or time.monotonic() > until:
                    raise
            await asyncio.sleep(LOOK_S)


class Ends:
    """Follows the daemon's events as long as anybody waits for a job, in one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[asyncio.Event, str] = {}  # labels
        self._following: asyncio.Task[None] | None = None
        self._is_watching = False
        self.error: Exception | None = None

    @contextlib.contextmanager
    def follow(self, label: str) -> Generator[asyncio.Event, None, None]:
        """Set whenever the job may have ended; first as soon as the events are followed, as it may
        have ended before that."""
        news = asyncio.Event()
        self._waiting[news] = label
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow())
        elif self._is_watching:
            news.set()
        try:
            yield news
        finally:
            del self._waiting[news]
            if not self._waiting and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _follow(self) -> None:
        self.error, self._is_watching = None, False
        while True:
            try:
                async for event in Iterated(self._client, Client.events, (), {}):
                    self._tell(event)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                if not self._may_retry(error):
                    self.error, self._following = error, None
                    self._wake(self._waiting)
                    return
            await asyncio.sleep(AGAIN_S)
            self._wake(self._waiting)

    def _may_retry(self, error: Exception) -> bool:
        """Whether those who wait ask by themselves for now: the events cannot be followed yet."""
        if not isinstance(error, Problem):
            return False
        return error.code == "too_many" or (is_away(error) and not self._is_watching)

    def _tell(self, event: EventOut) -> None:
        """Whom it may concern: of the end of a job, those who wait for it or for its array; of
        several of an array, such as "5_[0-3]", all who wait for any of it."""
        if event["event"] in ("watching", "missed"):
            self._is_watching = True
            self._wake(self._waiting)
        elif event["event"] == "ended" and "job" in event:
            label = event["job"]["label"]
            array, _, tasks = label.partition("_")
            several = {each for each in self._waiting.values() if each.startswith(f"{array}_")}
            its = {array, label, *(several if "[" in tasks else ())}
            self._wake([news for news, label in self._waiting.items() if label in its])

    def _wake(self, waiting: Iterable[asyncio.Event]) -> None:
        for news in waiting:
            news.set()


class Stopped(Exception):
    """Raised in the thread of a client that was stopped."""


class Stoppable(Client):
    """A client for one thread, whose request or pause another thread may end."""

    def __init__(self, client: Client) -> None:
        super().__init__(client._socket)
        self._is_stopped = threading.Event()
        self._sock: socket.socket | None = None

    def stop(self) -> None:
        self._is_stopped.set()
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it is not connected any more
                self._sock.shutdown(socket.SHUT_RDWR)

    def pause(self, seconds: float) -> None:
        if self._is_stopped.wait(seconds):
            raise Stopped

    def connect(self, within_s: float) -> Connection:
        connection = super().connect(within_s)
        self._sock = connection.sock
        if self._is_stopped.is_set():
            connection.close()
            raise Stopped
        return connection


class Iterated(AsyncIterator[T]):
    """What a method finds in a thread of its own, which ends with this. Whoever is cancelled while
    waiting for the next has missed nothing."""

    def __init__(
        self,
        client: Client,
        method: Callable[..., Generator[T, None, None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if "broken" in kwargs:
            loop = asyncio.get_running_loop()
            kwargs["broken"] = partial(loop.call_soon_threadsafe, kwargs["broken"])
        own, self._asked = Stoppable(client), Asked()
        self._next: asyncio.Future[T] | None = None
        self._stop = weakref.finalize(self, _stop, own, self._asked)
        found = method(own, *args, **kwargs)
        thread = threading.Thread(target=_find, args=(found, self._asked), daemon=True)
        thread.start()

    async def __anext__(self) -> T:
        if not self._stop.alive:
            raise StopAsyncIteration
        if self._next is None:
            asked: futures.Future[T] = futures.Future()
            self._asked.put(asked)
            self._next = asyncio.wrap_future(asked)
        await asyncio.wait([self._next])  # if this is cancelled, the next one stays
        found, self._next = self._next, None
        return found.result()

    async def aclose(self) -> None:
        self._stop()


def _stop(client: Stoppable, asked: Asked) -> None:
    client.stop()
    asked.put(None)


def _find(found: Generator[Any, None, None], asked: Asked) -> None:
    """In the thread: one for each that is asked for."""
    while (future := asked.get()) is not None:
        try:
            future.set_result(next(found))
        except Stopped:
            return
        except StopIteration:
            future.set_exception(StopAsyncIteration())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)
