"""`asyncio.run`, whatever other tests of the process have left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_here(main: Coroutine[Any, Any, T]) -> T:
    """In this thread, as textual's apps want it."""
    others = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return asyncio.run(main)
    finally:
        asyncio._set_running_loop(others)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: Playwright's event loop goes on running in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()
