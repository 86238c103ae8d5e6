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
from starlette.datastructures import State
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from carmad import beats
from carmad.errors import CarmaError
from carmad.http.connections import (
    BACKLOG,
    FREE,
    Connections,
    Credentials,
    Listener,
    Owners,
    Peers,
    caller,
    payer,
)
from carmad.http.turns import LARGE, RoundRobin
from carmad.installed import VERSION
from carmad.threads import api_threads

log = logging.getLogger(__name__)
READ_AT_ONCE = 16 << 10
HEAD_WITHIN_S = 30.0  # also how long a connection may idle between two requests
READ_WITHIN_S = 30.0  # how long an answer may wait in memory to be read
MAX_HEAD = 64 << 10
START_WITHIN_S = 10.0
LATE_S = 15.0  # of the event loop
STOP_WITHIN_S = 5
SWITCH_S = 0.0005


class PeerProtocol(HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's protocol, which also knows its peer, and drops clients that connect without sending
    a request, do not read the answer, or send another request before it. It reads little at a time,
    so that waiting requests take little memory."""

    counted: ClassVar[Connections]
    peers: ClassVar[Peers]
    owners: ClassVar[Owners]
    credentials: Credentials | None = None
    payer: int | None = None  # who pays for it; None: it is not counted any more
    _asks: asyncio.Task[None] | None = None
    _chunk: ClassVar[bytearray] = bytearray(READ_AT_ONCE)  # shared: one read at a time
    _head_due: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        pid, uid, gid = caller(transport.get_extra_info("socket"))
        self.credentials = Credentials(uid, gid, pid)
        if self.payer == uid and uid not in FREE:
            self._asks = self.loop.create_task(self._count_nobodys())
        self._expect_head()

    @classmethod
    def admit(cls, uid: int) -> int | None:
        """Count one more connection; returns the user that it counts against. None: refused."""
        user = cls.owners.of(uid)
        if not cls.counted.is_room(user):
            return None
        cls.counted.add(user)
        return user

    def _count_no_more(self) -> None:
        if self.payer is not None:
            self.counted.remove(self.payer)
            self.payer = None

    async def _count_nobodys(self) -> None:
        """Count it anew, should its uid have no name."""
        assert self.credentials is not None
        user = await payer(self.credentials, self.peers, self.owners)
        if self.payer in (None, user):
            return
        self._count_no_more()
        if self.counted.is_room(user):
            self.counted.add(user)
            self.payer = user
        else:
            self.transport.write(BUSY)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._head_is_there()
        self._is_read()
        self._count_no_more()
        if self._asks is not None:
            self._asks.cancel()

    def on_message_begin(self) -> None:
        if not self._idle():
            raise ValueError("a request before the previous answer")  # uvicorn answers 400
        super().on_message_begin()
        self.scope["state"]["credentials"] = self.credentials

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self._chunk)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before or not self._idle():
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if len(self.cycle.body) > LARGE:
            self.flow.pause_reading()  # until the body is requested

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        """Sets a deadline for the whole head: uvicorn's own timer restarts with every byte."""
        self._head_is_there()
        if not self.transport.is_closing():
            self._head_due = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _head_is_there(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


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


def _protocol(app: FastAPI) -> type[PeerProtocol]:
    """For one server, which counts its own connections."""

    class Protocol(PeerProtocol):
        counted = Connections(FREE)
        peers = app.state.peers
        owners = app.state.owners

    return Protocol


class _Uvicorn(uvicorn.Server):
    """Accepts connections user by user in turn, whatever their order in the kernel's queue."""

    def __init__(
        self,
        config: uvicorn.Config,
        protocol: type[PeerProtocol],
        listener: Listener,
        state: State,
    ) -> None:
        super().__init__(config)
        self._protocol = protocol
        self._listener = listener
        self._state = state
        self._rounds: RoundRobin = state.shares.rounds
        self._waiting: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        await super().startup(sockets=[])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._waiting:
            task.cancel()
        await super().shutdown(sockets)

    def _accept(self) -> None:
        for connection, user in self._listener.take():
            waiting = asyncio.get_running_loop().create_task(self._connect(connection, user))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)

    async def _connect(self, connection: socket.socket, user: int) -> None:
        try:
            await self._rounds.turn(user)
        except BaseException:
            connection.close()
            raise
        protocol = self._protocol(self.config, self.server_state, self.lifespan.state)
        protocol.payer = user
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)

    async def on_tick(self, counter: int) -> bool:
        """Called by its loop every 0.1 s."""
        beats.at("requests")
        return await super().on_tick(counter)


class Server:
    """Serves `app` on the bound `sock` in its own thread."""

    def __init__(self, sock: socket.socket, app: FastAPI) -> None:
        protocol = _protocol(app)
        self._sock = Listener(sock, protocol.admit, BUSY)
        self._stop_service: Callable[[], None] = app.state.service.stop
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=[("X-Carma-Version", VERSION)],
                timeout_keep_alive=int(HEAD_WITHIN_S),
                timeout_graceful_shutdown=STOP_WITHIN_S,
            ),
            protocol,
            self._sock,
            app.state,
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
