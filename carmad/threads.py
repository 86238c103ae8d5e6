"""Thread pools that start all their threads at once and keep them: once a user has exhausted the
machine's processes, no thread can be started, and the daemon must go on with those it has."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any, ParamSpec, TypeVar

from carmad import beats

P = ParamSpec("P")
T = TypeVar("T")

_Line = OrderedDict[int, OrderedDict[Hashable, Callable[[], object]]]  # by user and key

log = logging.getLogger(__name__)


class Threads(Executor):
    """`count` threads, each with a heartbeat: it is late after `late_s` of the same call. One that
    hangs does not keep the process from ending, as one of a `ThreadPoolExecutor` would."""

    def __init__(self, count: int, name: str, late_s: float) -> None:
        self._name = name
        self._late_s = late_s
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = RLock()  # a signal handler may submit while another does
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


class SharedThreads:
    """Threads for the calls of many users: users in turn, and of each user at most `each` calls at
    a time, so that calls that hang leave threads to the others."""

    def __init__(self, count: int, name: str, late_s: float, each: int = 1) -> None:
        self._threads = Threads(count, name, late_s)
        self._each = each
        # The calls that wait, by user, the next user first: the urgent ones, and the others.
        self._lines: tuple[_Line, _Line] = (OrderedDict(), OrderedDict())
        self._busy: Counter[int] = Counter()  # calls under way, by user
        self._lock = Lock()

    def submit(
        self,
        user: int,
        call: Callable[[], object],
        *,
        key: Hashable = None,
        urgent: bool = False,
    ) -> None:
        """`key`: for `drop`; of two calls with one key that wait, only the later is made. `urgent`:
        it goes before all that are not. Raises RuntimeError after the shutdown. What the call
        raises is logged."""
        with self._lock:
            calls = self._lines[not urgent].setdefault(user, OrderedDict())
            calls[object() if key is None else key] = call
        self._threads.submit(self._serve)

    def drop(self, key: Hashable) -> None:
        """Forget the calls with this key that have not begun."""
        with self._lock:
            for line in self._lines:
                for calls in line.values():
                    calls.pop(key, None)

    def shutdown(self, wait: bool = True) -> None:
        """What has not begun is not done any more."""
        with self._lock:
            for line in self._lines:
                line.clear()
        self._threads.shutdown(wait, cancel_futures=True)

    def _serve(self) -> None:
        while found := self._next():
            user, call = found
            beats.at("a call")
            try:
                call()
            except Exception:
                log.exception("a call of user %d failed", user)
            finally:
                with self._lock:
                    self._busy[user] -= 1

    def _next(self) -> tuple[int, Callable[[], object]] | None:
        """Whoever is at the maximum is passed over: a thread that ends one of their calls comes
        back for the next."""
        with self._lock:
            for line in self._lines:
                for user, calls in tuple(line.items()):
                    if calls and self._busy[user] >= self._each:
                        continue
                    del line[user]
                    if calls:
                        _, call = calls.popitem(last=False)
                        line[user] = calls  # behind the other users
                        self._busy[user] += 1
                        return user, call
        return None


API_THREADS = 32
LATE_S = 600.0  # the longest request: an estimate by a script that is given more time


@cache
def api_threads() -> Threads:
    return Threads(API_THREADS, "api-worker", LATE_S)


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Replaces starlette's, which starts threads on demand and ends them soon after."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(api_threads(), partial(call, *args, **kwargs))
