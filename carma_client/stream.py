"""The daemon's stream of events: server-sent events over its unix socket. Imports stay light."""

from __future__ import annotations

import json
import socket
import time

from carma_client import transport
from carma_client.errors import Problem, Unreachable
from carma_client.steps import Found, Receive, Send, Sleep

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from carma_client.steps import Steps

SILENT_S = 60.0  # a daemon that lives gives a sign of life every quarter of a minute


def events(
    daemon: transport.Daemon,
    broken: Callable[[str], None] = lambda why: None,
    **query: object,
) -> Steps[None]:
    """Finds the events, from a first one called `watching`, until all selected jobs have ended. If
    the daemon stops, `broken` is called, and the stream goes on after the last event once it is
    back."""
    path, last, lost_at = transport.with_query("/v1/events", query), "", 0.0
    while True:
        try:
            stream = Stream(daemon, path, last)
            with stream.connection:
                yield from stream.open()
                while event := (yield from stream.next()):
                    lost_at, last = 0.0, event["id"]
                    if event["event"] == "over":
                        return
                    yield Found(event)
            raise ConnectionError("carmad is stopping")
        except (OSError, ValueError, Problem) as error:
            now = time.monotonic()
            if isinstance(error, Problem) and not transport.is_away(error):
                raise
            if not last or (lost_at and now - lost_at > transport.RESTARTED_WITHIN_S):
                if isinstance(error, Problem):
                    raise
                raise Unreachable("the connection to carmad broke") from None
            if not lost_at:
                lost_at = now
                broken("the connection to carmad broke: waiting for it to come back")
            yield Sleep(transport.LOOK_S)


class Stream:
    """One connection. Its methods raise OSError or ValueError when it breaks."""

    def __init__(self, daemon: transport.Daemon, path: str, last: str) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._where = daemon.socket
        resume = f"Last-Event-ID: {last}\r\n" if last else ""
        self._head = f"GET {path} HTTP/1.1\r\nHost: carma\r\nConnection: close\r\n{resume}\r\n"
        self._buffer = b""
        self._found: list[Any] = []

    def open(self) -> Steps[None]:
        yield from transport.connect(self.connection, self._where, transport.TIMEOUT_S)
        yield Send(self.connection, self._head.encode(), transport.TIMEOUT_S)
        status = int((yield from self._line())[9:12])
        length = 0
        while header := (yield from self._line()).strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if status >= 400:
            raise transport.refusal(status, json.loads((yield from self._exactly(length))))

    def next(self) -> Steps[Any]:
        """The next event; None: it has come to its end."""
        while not self._found:  # the daemon never splits an event among chunks
            size = int((yield from self._line()), 16)
            if not size:
                return None
            chunk = yield from self._exactly(size)
            yield from self._line()
            data = (line[6:] for line in chunk.split(b"\n") if line.startswith(b"data: "))
            self._found = [json.loads(each) for each in data]
        return self._found.pop(0)

    def _line(self) -> Steps[bytes]:
        while b"\n" not in self._buffer:
            yield from self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _exactly(self, size: int) -> Steps[bytes]:
        while len(self._buffer) < size:
            yield from self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _more(self) -> Steps[None]:
        more = yield Receive(self.connection, SILENT_S)
        if not more:
            raise ConnectionError("carmad closed the connection")
        self._buffer += more
