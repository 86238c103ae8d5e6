"""Where messages of tests go: what Apprise's json:// sends to."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any


class Target(http.server.ThreadingHTTPServer):
    """Fails the first `failing` times."""

    daemon_threads = True

    def __init__(self, failing: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.failing = failing
        self.got: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_port}/secret"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Target

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.failing -= 1
        failed = self.server.failing >= 0
        if not failed:
            self.server.got.append(body)
        self.send_response(500 if failed else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
