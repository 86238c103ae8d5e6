"""Threads that are there before they are needed, and stay: once somebody has taken all processes
of the machine, none can be started, and the daemon has to go on with those that it has."""

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
    """`count` of them from the start, where the base class starts one when it has work for it."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        all_there = Barrier(count + 1)
        try:
            for _ in range(count):
                self.submit(all_there.wait)
        except RuntimeError:  # there is no room for all: those that wait would keep us from ending
            all_there.abort()
            raise
        all_there.wait()


@cache
def api_threads() -> Threads:
    return Threads(API_THREADS, "api-worker")


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As starlette's, which starts threads when it needs them and ends them soon after."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(api_threads(), partial(call, *args, **kwargs))
