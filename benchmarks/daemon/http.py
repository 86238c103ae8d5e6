"""HTTP on the daemon's socket from prepared bytes: its clients share the cores with it.

`Hostile` is a user who attacks the daemon in several ways at once. Three such users each do
something else, as a single user who did it all would only keep himself waiting.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

UNFINISHED = 240
TRICKLING = 10
STATUS_LOOPS = 6
BOMB = b"[" + b"[]," * 2_600_000 + b"[]]"


def request(
    method: str, path: str, body: bytes = b"", *, size: int | None = None, version: str = "1.0"
) -> bytes:
    """`size`: the length to claim, if not the body's."""
    length = len(body) if size is None else size
    head = (
        f"{method} {path} HTTP/{version}\r\nHost: carma\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def ask(path: str, sent: bytes) -> bytes:
    """The answer over a connection of its own, as `carma` asks. `path`: the socket's."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(sent)
        chunks = []
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
    answer = b"".join(chunks)
    if b" 20" not in answer[:16]:
        raise SystemExit(f"carmad refused: {answer!r:.500}")
    return answer


def get(path: str, target: str) -> bytes:
    return ask(path, request("GET", target))


class Hostile:
    """`answers`: how often which attack was answered with which status; 0: with none."""

    def __init__(self, path: str, until: float) -> None:
        self._path = path
        self._until = until  # monotonic
        self.answers: Counter[str] = Counter()

    def attack(self, kind: int) -> None:
        loops: list[Callable[[], None]] = [
            [self._send_unfinished, self._trickle, self._bomb, self._bomb],
            [self._environments, *[self._submit_and_cancel] * 4],
            [self._submit_and_cancel, *[self._status] * STATUS_LOOPS],
        ][kind]
        threads = [threading.Thread(target=loop) for loop in loops]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _go_on(self) -> bool:
        return time.monotonic() < self._until

    def _send_unfinished(self) -> None:
        """Each has most of a body that never ends."""
        part = request("POST", "/v1/jobs", b'"' + b"x" * 7_000_000, size=8_000_000)
        held: list[tuple[socket.socket, int]] = []
        while self._go_on():
            while len(held) < UNFINISHED:
                held.append((self._connect(), 0))
            held = [one for each in held if (one := self._push(*each, part)) is not None]
            time.sleep(0.05)

    def _push(
        self, connection: socket.socket, at: int, part: bytes
    ) -> tuple[socket.socket, int] | None:
        connection.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                at += connection.send(part[at : at + 262_144])
        except OSError:
            self.answers["unfinished body: dropped"] += 1
            connection.close()
            return None
        return connection, at

    def _trickle(self) -> None:
        head = b"GET /v1/status HTTP/1.1\r\nX: " + b"x" * 60_000
        held: list[socket.socket] = []
        for at in count():
            if not self._go_on():
                return
            while len(held) < TRICKLING:
                held.append(self._connect())
            for each in list(held):
                try:
                    each.send(head[at % 60_000 : at % 60_000 + 1])
                except OSError:
                    self.answers["trickled head: dropped"] += 1
                    held.remove(each)
            time.sleep(0.1)

    def _bomb(self) -> None:
        bomb = request("POST", "/v1/jobs", BOMB)
        while self._go_on():
            self._ask("8 MB of [],", bomb)

    def _environments(self) -> None:
        for number in count():
            if not self._go_on():
                return
            env = {f"V{number}_{n}": f"{number:08}" * 12_500 for n in range(10)}
            self._ask("held job with 1 MB of environment", self._submission(env))

    def _submit_and_cancel(self) -> None:
        cancel = json.dumps({"select": "all"}).encode()
        for number in count():
            if not self._go_on():
                return
            env = {f"W{number}_{n}": f"{number:08}" * 2_500 for n in range(10)}
            self._ask("submit", self._submission(env))
            self._ask("cancel", request("POST", "/v1/cancel", cancel))

    def _status(self) -> None:
        while self._go_on():
            self._ask("status", request("GET", "/v1/status"))

    def _submission(self, env: dict[str, str]) -> bytes:
        body = {"argv": ["/bin/true"], "cwd": "/tmp", "env": env, "held": True}
        return request("POST", "/v1/jobs", json.dumps(body).encode())

    def _connect(self) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(30)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                time.sleep(0.01)
            else:
                return connection

    def _ask(self, what: str, sent: bytes) -> None:
        answer = b""
        with contextlib.suppress(OSError), self._connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(sent)
            while chunk := connection.recv(1 << 18):
                answer = answer or chunk
        self.answers[f"{what}: {answer[9:12].decode() or 0}"] += 1
