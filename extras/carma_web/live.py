"""Tells the open pages that something is new. They fetch the parts that show it.

One stream of the daemon's events serves all pages. Readings of GPUs are no events: they are new
every few seconds. A browser has six connections to a server for all of its windows: when more than
four of them listen, the oldest is sent away for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse

from carma_client import AsyncClient, Problem

READINGS_S = 2.0
REST_S = 1.0  # a busy server has many events a second
AGAIN_S = 5.0
MOST_OF_BROWSER = 4

READINGS, NEWS, AWAY = "readings", "news", "away"  # what a part may depend on; carmad is away


class Live:
    """`stream` is the endpoint."""

    def __init__(self) -> None:
        self._pages: dict[Watch, None] = {}  # the oldest first
        self._listening: asyncio.Task[None] | None = None
        self._ended = False

    async def stream(self, request: Request) -> StreamingResponse:
        browser = request.query_params.get("browser", "")
        return StreamingResponse(self._updates(browser), media_type="text/event-stream")

    def end(self) -> None:
        """All streams."""
        self._ended = True
        if self._listening is not None:
            self._listening.cancel()
        for page in self._pages:
            page.send_away()

    async def _updates(self, browser: str) -> AsyncIterator[bytes]:
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        page = Watch(browser)
        self._pages[page] = None
        its = [each for each in self._pages if each.browser == browser]
        for each in its[:-MOST_OF_BROWSER]:
            each.send_away()
        try:
            yield b"retry: 3000\n\n"
            while not page.sent_away.is_set():
                yield f"data: {' '.join(sorted(await page.news()))}\n\n".encode()
                await _until(page.sent_away, REST_S)
            if not self._ended:
                yield b"event: full\ndata: the browser has other windows\n\n"
        finally:
            del self._pages[page]

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(Problem):
                async for _ in AsyncClient().events(broken=lambda why: self._tell(AWAY)):
                    self._tell(NEWS)
            self._tell(AWAY)
            await asyncio.sleep(AGAIN_S)

    def _tell(self, what: str) -> None:
        for page in self._pages:
            page.note(what)


class Watch:
    """An open page: what it has not been told yet."""

    def __init__(self, browser: str) -> None:
        self.browser = browser
        self.sent_away = asyncio.Event()
        self._new = {NEWS}  # of what was between making the page and this
        self._some = asyncio.Event()

    def note(self, what: str) -> None:
        self._new.add(what)
        self._some.set()

    def send_away(self) -> None:
        self.sent_away.set()
        self._some.set()

    async def news(self) -> set[str]:
        await _until(self._some, READINGS_S - REST_S)
        found, self._new = self._new | {READINGS}, set()
        self._some.clear()
        return found


async def _until(event: asyncio.Event, within_s: float) -> None:
    """Until the event is set, or the time is over."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)
