"""HTTP on the daemon's socket from prepared bytes: its clients share the cores with it."""

from __future__ import annotations

import socket


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
