"""What is refused before it is parsed, and what is not."""

from __future__ import annotations

import json

import pytest

from carmad.http.bounds import read_body
from carmad.http.problems import TooLarge
from tests.aio import run_async


def read(body: bytes, path: str = "/v1/jobs") -> bytes | None:
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return run_async(read_body({"type": "http", "path": path}, receive))


@pytest.mark.parametrize(
    "bomb",
    [b"[" + b"[]," * 2_000_000 + b"[]]", b"[" * 8_000_000, b'{"a":' * 1_000_000, b"[0,1" * 500_000],
    ids=lambda bomb: repr(bomb[:6]),
)
def test_bombs_are_refused(bomb: bytes) -> None:
    with pytest.raises(TooLarge, match="values"):
        read(bomb)


def test_too_large_is_refused() -> None:
    for size, path in ((9 << 20, "/v1/jobs"), (40_000, "/v1/cancel")):
        with pytest.raises(TooLarge, match="KiB"):
            read(b" " * size, path)
    assert read(b"{}", "/v1/cancel") == b"{}"


def test_the_largest_request_is_let_in() -> None:
    argv = ['x,[{"'] * 10_000
    env = {f"V{n}": '[{"a": 1}]' for n in range(10_000)}
    array = {"indices": list(range(10_000)), "limit": 3}
    params = {f"p{n}": ["1"] * 10_000 for n in range(16)}
    after = [{"job": str(n), "kind": "afterok"} for n in range(1000)]
    body = {"argv": argv, "env": env, "export": env, "array": array | {"params": params}}
    text = json.dumps({**body, "after": after}).encode()
    assert read(text) == text
