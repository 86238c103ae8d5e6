"""Thread pools that start all their threads at once and keep them: once a user has exhausted the
machine's processes, no thread can be started, and the daemon must go on with those it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

from carmad import beats

P = ParamSpec("P")
T = TypeVar("T")


class Threads(Executor):
    """`count` threads, each with a heartbeat: it is late after `late_s` of the same call. One that
    hangs does not keep the process from ending, as one of a `ThreadPoolExecutor` would."""

    def __init__(self, count: int, name: str, late_s: float) -> None:
        self._name = name
        self._late_s = late_s
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False
        self._threads: list[Thread] = []
        try:
            for number in range(count):
                thread = Thread(target=self._serve, name=f"{name}_{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:  # not all could be started
            self.shutdown()
            raise

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is shut down")
            self._calls.put((future, partial(call, *args, **kwargs)))
        return future

    def shutdown(
        self, wait: bool = True, *, cancel_futures: bool = False, within_s: float | None = None
    ) -> None:
        """What was submitted is done first, unless it is cancelled. `within_s`: how long to wait
        for each thread; None: for as long as it takes."""
        with self._lock:
            self._closed = True
            try:
                while cancel_futures:
                    if item := self._calls.get_nowait():
                        item[0].cancel()
            except Empty:
                pass
            for _ in self._threads:
                self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join(within_s)

    def _serve(self) -> None:
        with beats.beating(self._name, self._late_s):
            while item := self._calls.get():
                future, call = item
                if future.set_running_or_notify_cancel():
                    beats.at("a call")
                    try:
                        future.set_result(call())
                    except BaseException as error:  # noqa: BLE001 - passed on to the caller
                        future.set_exception(error)
                    beats.idle()
                del item, future, call  # otherwise they would be kept until the next call


API_THREADS = 32
LATE_S = 600.0  # the longest request: an estimate by a script that is given more time


@cache
def api_threads() -> Threads:
    return Threads(API_THREADS, "api-worker", LATE_S)


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Replaces starlette's, which starts threads on demand and ends them soon after."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(api_threads(), partial(call, *args, **kwargs))
