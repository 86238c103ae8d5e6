"""Bounds of a request: its size, how much its JSON contains, how long it takes to arrive; and the
turn of its user."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carmad.errors import CarmaError
from carmad.http.connections import NOBODY, Credentials, Owners, Peers, payer
from carmad.http.problems import TooLarge, TooSlow, extra_headers, refusal_of
from carmad.http.turns import LARGE, Share, Shares

MOST_STRINGS = 100_000
MOST_VALUES = 100_000
MOST_CONTAINERS = 4096
MOST_DEPTH = 16
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

MAX_BODY = 8 << 20  # of a submission
MAX_SHORT_BODY = LARGE  # of all other requests: these never wait to be read
LONG = frozenset({"/v1/jobs", "/v1/estimate"})
FILE_HINT = "Put long data into a file, and pass its name to the job."
MAX_DISCARDED = 16 << 20  # read and discarded, so that the client reads our answer
BODY_WITHIN_S = 30.0


def require_modest(text: bytes) -> None:
    """Raises CarmaError for what has more in it than any request needs.

    What is not JSON is left to the parser, which stops where JSON ends and the counts go wrong.
    """
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote left is a string's end
    _require("strings", plain.count(b'"') // 2, MOST_STRINGS)
    outside = b"".join(plain.split(b'"')[::2])
    _require("values", outside.count(b","), MOST_VALUES)
    brackets = outside.translate(None, _NO_BRACKETS)
    _require("lists and objects", (len(brackets) + 1) // 2, MOST_CONTAINERS)
    depth = deepest = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    _require("levels of lists and objects", deepest, MOST_DEPTH)


def _require(what: str, count: int, most: int) -> None:
    if count > most:
        raise CarmaError(f"the request has {count} {what}; at most {most} are allowed")


class Bounded:
    """Reads a complete request, of limited size, when it is its user's turn."""

    def __init__(self, app: ASGIApp, peers: Peers, owners: Owners, shares: Shares) -> None:
        self._app = app
        self._peers = peers
        self._owners = owners
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        share = await self._share(state.get("credentials"))
        state["turn"] = turn = share.turn()
        try:
            async with contextlib.AsyncExitStack() as held:
                held.enter_context(share.presence())
                body = await self._body(scope, receive, share, held)
                if body is not None:
                    async with turn:
                        await self._app(scope, _replay(body, receive), send)
            return None
        except CarmaError as error:  # from here, not from the app, which handles its own errors
            answer = refusal_of(error, {"connection": "close", **extra_headers(error)})
        await share.come()  # many may be refused at once
        return await answer(scope, receive, send)

    async def _share(self, who: Credentials | None) -> Share:
        return self._shares.of(await payer(who, self._peers, self._owners) if who else NOBODY)

    async def _body(
        self, scope: Scope, receive: Receive, share: Share, held: contextlib.AsyncExitStack
    ) -> bytes | None:
        """None: the client has gone."""
        size = _body_size(scope)
        await share.pace(min(size, MAX_BODY))
        try:
            async with asyncio.timeout(BODY_WITHIN_S), contextlib.AsyncExitStack() as reading:
                if size > LARGE:
                    await reading.enter_async_context(share.large(self._shares.large))
                most = MAX_BODY if scope["path"] in LONG else MAX_SHORT_BODY
                body = await _read_body(receive, most)
                if body and len(body) > LARGE:  # not just declared to be
                    held.push_async_exit(reading.pop_all())
        except TimeoutError:
            raise TooSlow("the request did not arrive in time", "Try again.") from None
        if body is not None:
            try:
                require_modest(body)
            except CarmaError as error:
                raise TooLarge(error.message, FILE_HINT) from None
        return body


def _body_size(scope: Scope) -> int:
    """The declared size of the body; without one, the maximum."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return MAX_BODY
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else MAX_BODY


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """None: the client has gone."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= most:
            chunks.append(chunk)
        else:
            chunks.clear()
        if not message.get("more_body") or size > MAX_DISCARDED:
            break
    if size > most:
        raise TooLarge(f"the request is larger than {most >> 10} KiB", FILE_HINT)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
