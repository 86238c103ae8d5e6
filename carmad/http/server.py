"""Serves an app on an AF_UNIX socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import ClassVar

import uvicorn
from fastapi import FastAPI
from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from carmad import beats
from carmad.errors import CarmaError
from carmad.http.connections import FREE, Connections, Credentials, caller
from carmad.installed import VERSION
from carmad.threads import api_threads

log = logging.getLogger(__name__)
HEAD_WITHIN_S = 30.0  # also how long a connection may idle between two requests
READ_WITHIN_S = 30.0  # how long an answer may wait in memory to be read
MAX_HEAD = 64 << 10
BACKLOG = 1024  # connections that wait to be accepted
START_WITHIN_S = 10.0
LATE_S = 15.0  # of the event loop
STOP_WITHIN_S = 5
SWITCH_S = 0.0005


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which also knows its peer and refuses a user's one connection too many.
    It drops clients that do not send a whole head in time, that do not read the answer, or that
    send another request before it."""

    counted: ClassVar[Connections]
    credentials: Credentials | None = None
    _is_counted = False
    _due: asyncio.TimerHandle | None = None
    _beside_body = 0  # bytes of this request: the head, and what is between parts of the body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.credentials = caller(transport.get_extra_info("socket"))
        self._is_counted = self.counted.add(self.credentials.uid)
        if self._is_counted:
            self._drop_after(HEAD_WITHIN_S)
        else:
            transport.write(BUSY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._drop_after(None)
        if self._is_counted and self.credentials:
            self.counted.remove(self.credentials.uid)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._beside_body += len(data)
        if self._beside_body > MAX_HEAD:  # trailers, too: uvicorn would collect them without end
            self.transport.close()

    def on_message_begin(self) -> None:
        if not self._is_idle():
            raise ValueError("a request before the previous answer")  # uvicorn answers 400
        self._beside_body = 0
        super().on_message_begin()
        self.scope["state"]["credentials"] = self.credentials

    def on_body(self, body: bytes) -> None:
        self._beside_body -= len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._drop_after(None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._drop_after(HEAD_WITHIN_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._drop_after(READ_WITHIN_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drop_after(HEAD_WITHIN_S if self._is_idle() else None)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _drop_after(self, seconds: float | None) -> None:
        """None: it may take its time. uvicorn's own timer restarts with every byte."""
        if self._due is not None:
            self._due.cancel()
        self._due = self.loop.call_later(seconds, self.transport.abort) if seconds else None


def _unavailable(error: str, hint: str, more: bytes = b"") -> bytes:
    """An answer to any request; `more`: additional headers."""
    body = to_json({"error": error, "hint": hint, "code": "unavailable"})
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
        b"content-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
        % (more, len(body), body)
    )


BUSY = _unavailable(
    "you have too many connections to carmad open",
    "Wait for jobs with one `carma wait` instead of many.",
    b"retry-after: 1\r\n",
)


_NO_START = _unavailable(
    "carmad cannot start, and has done nothing",
    "An administrator finds the reason with: journalctl -u carmad",
)


def turn_away(listener: socket.socket) -> None:
    """Answer the clients that wait for a carmad that cannot start. Otherwise systemd would start it
    again as long as any client waits."""
    with contextlib.suppress(OSError):  # no client is left
        listener.setblocking(False)
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(_NO_START)
                connection.shutdown(socket.SHUT_WR)
                connection.setblocking(False)
                while connection.recv(1 << 16):  # left unread, it would reset the connection
                    pass


class _Uvicorn(uvicorn.Server):
    async def on_tick(self, counter: int) -> bool:
        """Called by its loop every 0.1 s."""
        beats.at("requests")
        return await super().on_tick(counter)


class Server:
    """Serves `app` on the bound `sock` in its own thread."""

    def __init__(self, sock: socket.socket, app: FastAPI) -> None:
        self._sock = sock
        self._stop_service: Callable[[], None] = app.state.service.stop
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                loop="asyncio",
                # A class for one server, which counts its own connections.
                http=type("Protocol", (PeerProtocol,), {"counted": Connections(FREE)}),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=[("X-Carma-Version", VERSION)],
                timeout_keep_alive=int(HEAD_WITHIN_S),
                timeout_graceful_shutdown=STOP_WITHIN_S,
                backlog=BACKLOG,
            )
        )
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        """Returns once requests are answered."""
        # A request releases the GIL at every read and write. By default the core's thread may then
        # keep it for 5 ms, which halves the number of submissions per second.
        sys.setswitchinterval(SWITCH_S)
        api_threads()
        self._thread.start()
        waited = 0.0
        while not self._uvicorn.started:
            if self._ended.wait(0.01) or waited > START_WITHIN_S:
                raise CarmaError("the HTTP API did not start", "See the daemon's log.")
            waited += 0.01

    def stop(self) -> None:
        """Accept no more requests, and answer those in progress."""
        self._uvicorn.should_exit = True
        self._stop_service()
        self._thread.join(STOP_WITHIN_S + 2.0)

    def _run(self) -> None:
        try:
            with beats.beating("api", LATE_S, fatal=True):
                self._uvicorn.run(sockets=[self._sock])
        except Exception:
            log.exception("the HTTP API has failed")
        finally:
            self._ended.set()
