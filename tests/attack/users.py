"""Hostile users: processes with other uids that attack the daemon and report the result."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.daemon import Carmad
from tests.waiting import PATIENCE_S

HOSTILE = (65534, 1, 2)  # nobody, daemon, bin: they are on every machine
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


def raw(path: str, sent: bytes) -> tuple[int, bytes]:
    """The status and the complete answer to raw bytes sent as a request."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
    return int(answer.split(None, 2)[1]) if answer else 0, answer


def request(path: str, body: bytes, size: int | None = None) -> bytes:
    """`size`: the declared size of the body, which may be wrong."""
    length = len(body) if size is None else size
    head = f"POST {path} HTTP/1.0\r\nHost: c\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


def peak_rss_mib(daemon: Carmad) -> float:
    """The peak so far."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def statuses(path: str, requests: Sequence[bytes]) -> list[int]:
    return [raw(path, each)[0] for each in requests]
