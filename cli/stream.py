"""The daemon's stream of events: server-sent events over its unix socket. Imports stay light."""

from __future__ import annotations

import json
import socket
import time

from cli import client
from cli.problems import Unreachable

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

SILENT_S = 60.0  # a daemon that lives gives a sign of life every quarter of a minute
BACK_WITHIN_S = 120.0  # a daemon that is upgraded may have to copy its database
LOOK_S = 0.2


def events(broken: Callable[[str], None] = lambda why: None, **query: object) -> Iterator[Any]:
    """The events, from a first one called `watching`, until all selected jobs have ended. If the
    daemon stops, `broken` is called, and the stream goes on after the last event once it is back.
    """
    path, last, lost_at = client.with_query("/v1/events", query), "", 0.0
    while True:
        try:
            for event in _opened(path, last):
                lost_at, last = 0.0, event["id"]
                if event["event"] == "over":
                    return
                yield event
            raise ConnectionError("carmad is stopping")
        except (OSError, ValueError, Unreachable) as error:
            now = time.monotonic()
            if not last or (lost_at and now - lost_at > BACK_WITHIN_S):
                if isinstance(error, Unreachable):
                    raise
                raise Unreachable("the connection to carmad broke") from None
            if not lost_at:
                lost_at = now
                broken("the connection to carmad broke: waiting for it to come back")
            time.sleep(LOOK_S)


def _opened(path: str, last: str) -> Iterator[Any]:
    """Raises OSError or ValueError when the stream breaks."""
    resume = f"Last-Event-ID: {last}\r\n" if last else ""
    head = f"GET {path} HTTP/1.1\r\nHost: carma\r\nConnection: close\r\n{resume}\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        client.connected(connection, client.TIMEOUT_S)
        connection.settimeout(SILENT_S)
        connection.sendall(head.encode())
        with connection.makefile("rb") as answer:
            status = int(answer.readline()[9:12])
            while answer.readline().strip():
                pass  # headers
            if status >= 400:
                raise client.refused(status, json.loads(answer.read()))
            yield from _messages(answer)


def _messages(answer: BinaryIO) -> Iterator[Any]:
    """The daemon never splits a message among chunks."""
    while size := int(answer.readline(), 16):
        chunk = answer.read(size)
        answer.readline()
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
