"""The threads in which requests do what takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import ParamSpec, TypeVar

from carmad.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")

API_THREADS = 32
LATE_S = 600.0  # the longest request: an estimate by a script that is given more time


@cache
def api_threads() -> Threads:
    return Threads(API_THREADS, "api-worker", LATE_S)


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Replaces starlette's, which starts threads on demand and ends them soon after."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(api_threads(), partial(call, *args, **kwargs))
