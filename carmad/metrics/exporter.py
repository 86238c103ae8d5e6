"""The process that answers Prometheus over TCP, by asking the daemon on its socket.

It has no rights: started by root, it becomes nobody. Called with the host and the port where it
listens, and the daemon's socket. It ends when its standard input does. If the port is taken, it
says so on standard error, once, and tries again.
"""

from __future__ import annotations

import os
import pwd
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from carmad.metrics.declared import UP
from carmad.notify.sender import become

ANSWER_WITHIN_S = 8.0  # of the daemon: Prometheus waits for ten seconds, unless told otherwise
READ_WITHIN_S = 5.0  # each part of a request
MOST_BYTES = 16 << 20
PAUSE_S = 5.0  # before a port that is taken is tried again


def main() -> None:
    host, port, where = sys.argv[1:]
    "localhost".encode("idna")  # now: nobody may not be allowed to read Python's files
    if os.geteuid() == 0:
        its = pwd.getpwnam("nobody")
        become(its.pw_uid, its.pw_gid, [its.pw_gid])
    registry = CollectorRegistry()
    registry.register(Daemon(where))
    said = ""
    while True:
        try:
            server, _ = start_http_server(int(port), host, registry)
            break
        except OSError as error:
            wrong = f"cannot listen at {host}, port {port}: {error.strerror or error}"
        if wrong != said:
            _say(said := wrong)
        if _is_over(PAUSE_S):
            return
    endure_clients(server)
    _say(f"listening at {host}, port {port}")
    _is_over(None)


def _say(line: str) -> None:
    print(f"metrics: {line}", file=sys.stderr, flush=True)


def _is_over(within_s: float | None) -> bool:
    """Whether standard input, to which nobody writes, ends within that time; None: in any."""
    return bool(select.select([0], [], [], within_s)[0])


def endure_clients(server: WSGIServer) -> None:
    """Whoever connects could hold a thread for ever otherwise, and fill carmad's log."""
    server.RequestHandlerClass.timeout = READ_WITHIN_S  # type: ignore[attr-defined]
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


class Daemon(Collector):
    """Asked at each scrape. It is down if it does not answer, is busy, or stops."""

    def __init__(self, where: str) -> None:
        self._where = where

    def describe(self) -> list[Metric]:
        return []  # it need not be asked before the first scrape

    def collect(self) -> Iterator[Metric]:
        try:
            found = list(text_string_to_metric_families(self.read_page()))
        except (OSError, HTTPException, ValueError):
            down = Metric(UP.name, UP.help, UP.kind)
            down.add_sample(UP.name, {}, 0)
            found = [down]
        yield from found

    def read_page(self) -> str:
        """Raises OSError and HTTPException."""
        with closing(HTTPConnection("carma")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_WITHIN_S)
            connection.sock.connect(self._where)
            connection.request("GET", "/v1/metrics")
            response = connection.getresponse()
            page = response.read(MOST_BYTES)
        if response.status != 200:
            raise HTTPException(f"status {response.status}")
        return page.decode()
