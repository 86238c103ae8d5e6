"""Where messages of tests go: what Apprise's json:// sends to."""

from __future__ import annotations

import contextlib
import email
import http.server
import json
import socketserver
import threading
import time
from email.message import EmailMessage
from email.policy import default
from typing import Any


class _Served(socketserver.BaseServer):
    """From when it is made until it is closed."""

    def serve(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def server_close(self) -> None:
        self.shutdown()  # or its thread would spin on the closed socket
        super().server_close()


class Target(_Served, http.server.ThreadingHTTPServer):
    """Fails the first `failing` times. `drips`: it begins to answer, and never ends."""

    daemon_threads = True

    def __init__(self, failing: int = 0, drips: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.failing = failing
        self.drips = drips
        self.got: list[dict[str, Any]] = []
        self.serve()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_port}/secret"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Target

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with contextlib.suppress(OSError):
            while self.server.drips:
                self.wfile.write(b"H")
                time.sleep(0.1)
        self.server.failing -= 1
        failed = self.server.failing >= 0
        if not failed:
            self.server.got.append(body)
        self.send_response(500 if failed else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mail(_Served, socketserver.ThreadingTCPServer):
    """An SMTP server that takes everything, or hangs once it is connected to."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, hangs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Hanging if hangs else Taking)
        self.got: list[EmailMessage] = []
        self.serve()

    @property
    def url(self) -> str:
        port = self.server_address[1]
        return f"mailto://127.0.0.1:{port}?from=carma@example.org&to=ada@example.org"


class Taking(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.strip().upper() == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                self.server.got.append(email.message_from_bytes(b"".join(lines), policy=default))
            self.wfile.write(b"250 fine\r\n")


class Hanging(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline():
            pass
