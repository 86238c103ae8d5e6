"""Thread pools that start all their threads at once and keep them: once a user has exhausted the
machine's processes, no thread can be started, and the daemon must go on with those it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

API_THREADS = 32


class Threads(ThreadPoolExecutor):
    """Starts all `count` threads at once; the base class starts them on demand."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        all_there = Barrier(count + 1)
        try:
            for _ in range(count):
                self.submit(all_there.wait)
        except RuntimeError:  # not all could be started: release the others, so that we can exit
            all_there.abort()
            raise
        all_there.wait()


@cache
def api_threads() -> Threads:
    return Threads(API_THREADS, "api-worker")


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Replaces starlette's, which starts threads on demand and ends them soon after."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(api_threads(), partial(call, *args, **kwargs))
