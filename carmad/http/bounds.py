"""Bounds of a request: its size, how much its JSON contains, how long it takes to arrive; and its
user's share of the daemon."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carmad.errors import CarmaError
from carmad.http.connections import Credentials
from carmad.http.problems import TooLarge, TooSlow, refusal_of
from carmad.http.shares import LARGE, Shares

MAX_BODY = 8 << 20  # of a submission
MAX_SHORT_BODY = LARGE  # of all other requests
LONG = frozenset({"/v1/jobs", "/v1/estimate"})
MOST_VALUES = 500_000  # of its JSON: 8 MB of `[],` become hundreds of megabytes
FILE_HINT = "Put long data into a file, and pass its name to the job."
MAX_DISCARDED = 16 << 20  # read and discarded, so that the client reads our answer
BODY_WITHIN_S = 30.0
NOBODY = -1  # who did not come through the socket


class Bounded:
    """Reads a complete request, of limited size, when it is its turn among its user's."""

    def __init__(self, app: ASGIApp, shares: Shares) -> None:
        self._app = app
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        who: Credentials | None = state.get("credentials")
        share = self._shares.of(who.uid if who else NOBODY)
        state["turn"] = turn = share.turn()
        try:
            await share.admit(1 + _size(scope) // LARGE)
            async with turn:
                body = await read_body(scope, receive)
                if body is not None:
                    await self._app(scope, _replay(body, receive), send)
            return None
        except CarmaError as error:  # from here, not from the app, which handles its own errors
            answer = refusal_of(error)
            answer.headers["connection"] = "close"
        return await answer(scope, receive, send)


def _size(scope: Scope) -> int:
    """Of the body, as it is declared; the maximum if it is not."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    is_told = length.isdigit() and b"transfer-encoding" not in headers
    return min(int(length), MAX_BODY) if is_told else MAX_BODY


async def read_body(scope: Scope, receive: Receive) -> bytes | None:
    """None: the client has gone. Raises TooLarge, TooSlow."""
    most = MAX_BODY if scope["path"] in LONG else MAX_SHORT_BODY
    body = bytearray()
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            while more and size <= MAX_DISCARDED:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                chunk, more = message.get("body", b""), message.get("more_body", False)
                size += len(chunk)
                if size <= most:
                    body += chunk
    except TimeoutError:
        raise TooSlow("the request did not arrive in time", "Try again.") from None
    if size > most:
        raise TooLarge(f"the request is larger than {most >> 10} KiB", FILE_HINT)
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise TooLarge(f"the request has more than {MOST_VALUES} values", FILE_HINT)
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
