"""The process that answers Prometheus over TCP, by asking the daemon on its socket.

It has no rights: started by root, it becomes nobody. Called with the host and the port where it
listens, and the daemon's socket. It ends when its standard input does. What goes wrong it says on
standard error.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any

from carmad.metrics import LISTENING
from carmad.metrics.declared import UP
from carmad.notify.sender import become

AT_ONCE = 8  # connections; more are closed
READ_WITHIN_S = 5.0
ANSWER_WITHIN_S = 8.0  # of the daemon: Prometheus waits for ten seconds, unless told otherwise
GONE_WITHIN_S = 20.0  # a connection, whatever it is about
MOST_BYTES = 16 << 20
TEXT = "text/plain; version=0.0.4; charset=utf-8"
DOWN = f"# HELP {UP.name} {UP.help}\n# TYPE {UP.name} gauge\n{UP.name} 0\n".encode()


def main() -> None:
    host, port, where = sys.argv[1:]
    "localhost".encode("idna")  # now: nobody may not be allowed to read Python's files
    if os.geteuid() == 0:
        its = pwd.getpwnam("nobody")
        become(its.pw_uid, its.pw_gid, [its.pw_gid])
    try:
        server = Exporter(host, int(port), where)
    except OSError as error:
        sys.exit(f"cannot listen at {host}, port {port}: {error.strerror or error}")
    print(f"{LISTENING} {host}, port {port}", file=sys.stderr, flush=True)
    Thread(target=server.serve_forever, daemon=True).start()
    while os.read(0, 1):
        pass


class Exporter(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 4 * AT_ONCE

    def __init__(self, host: str, port: int, where: str) -> None:
        """Raises OSError if it cannot listen there."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self.where = where
        self._until: dict[Any, float] = {}  # by connection: when it is closed at the latest
        super().__init__(address, Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._until) >= AT_ONCE:
            self.shutdown_request(request)
            return
        self._until[request] = monotonic() + GONE_WITHIN_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called about twice a second."""
        now = monotonic()
        for request, until in list(self._until.items()):
            if now >= until:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever connects could fill the log otherwise."""


class Handler(BaseHTTPRequestHandler):
    server: Exporter
    server_version, sys_version = "carma", ""
    timeout = READ_WITHIN_S

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404, "See /metrics")
            return
        try:
            page = answer(self.server.where)
        except (OSError, HTTPException):
            page = DOWN
        self.send_response(200)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """As `handle_error`."""


class Daemon(HTTPConnection):
    def __init__(self, where: str) -> None:
        super().__init__("carma", timeout=ANSWER_WITHIN_S)
        self._where = where

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_WITHIN_S)
        self.sock.connect(self._where)


def answer(where: str) -> bytes:
    """The daemon's page. Raises OSError and HTTPException; also if it is busy, or stops."""
    daemon = Daemon(where)
    try:
        daemon.request("GET", "/v1/metrics")
        response = daemon.getresponse()
        page = response.read(MOST_BYTES)
    finally:
        daemon.close()
    if response.status != 200:
        raise HTTPException(f"status {response.status}")
    return page
