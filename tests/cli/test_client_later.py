"""What `carma` does when carmad is too busy or has no room for more requests."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from cli import client
from cli.problems import Refused


def answer(status: int, body: bytes, *headers: bytes) -> bytes:
    length = b"content-length: %d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 %d X" % status, length, *headers, b"", body])


def later(after_s: int) -> bytes:
    text = b'{"error": "too often", "code": "too_many"}'
    return answer(429, text, b"retry-after: %d" % after_s)


DONE = answer(200, b'{"id": 1}')


def answering(path: Path, *answers: bytes) -> list[bytes]:
    """The requests to the daemon, answered in this order."""
    asked: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for each in answers:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(each)

    threading.Thread(target=serve, daemon=True).start()
    return asked


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "sock"))
    return tmp_path / "sock"


def test_who_is_to_ask_again_later_does(path: Path) -> None:
    asked = answering(path, later(0), later(0), DONE)
    assert client.post("/v1/jobs", {"argv": ["true"]}) == {"id": 1}
    heads = [each.partition(b"\r\n\r\n")[0] for each in asked]  # a body may come later
    assert len(heads) == 3 and len(set(heads)) == 1


def test_but_not_for_longer_than_one_waits_for_an_answer(path: Path) -> None:
    asked = answering(path, later(3600))
    with pytest.raises(Refused, match="too often") as refused:
        client.get("/v1/status")
    assert refused.value.code == "too_many"
    assert len(asked) == 1


def test_a_refusal_that_says_nothing_of_later_is_final(path: Path) -> None:
    """The request may have been carried out."""
    busy = answer(503, b'{"error": "too busy", "code": "unavailable"}')
    asked = answering(path, busy, DONE)
    with pytest.raises(Refused, match="too busy"):
        client.post("/v1/jobs", {})
    assert len(asked) == 1


def test_an_answer_to_what_was_not_read_counts(path: Path) -> None:
    """The daemon refuses a long request and closes the connection without reading the rest."""
    answering(path, answer(413, b'{"error": "too large", "code": "too_large"}'))
    with pytest.raises(Refused, match="too large"):
        client.post("/v1/jobs", {"argv": ["x" * 10_000_000]})
