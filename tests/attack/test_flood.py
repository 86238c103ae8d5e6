"""What users can do to the daemon by asking: they fill neither its memory nor its disk, and keep
nobody else from being answered."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from carmad.http import connections, server
from tests import api_server, daemon
from tests.api_server import as_uid, as_user
from tests.attack.users import HOSTILE, needs_root, peak_rss_mib, raw, request, statuses
from tests.daemon import Carmad
from tests.waiting import PATIENCE_S, until

NOBODY = HOSTILE[0]
STREAM = b"GET /v1/events HTTP/1.1\r\nHost: c\r\n\r\n"
HEALTH = b"GET /v1/health HTTP/1.0\r\n\r\n"
BOMB = b"[" + b"[]," * 2_600_000 + b"[]]"


@pytest.fixture
def carmad() -> Iterator[Carmad]:
    """In a directory that every user may enter."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with daemon.running(Path(folder)) as running:
            yield running


def submission(number: int) -> bytes:
    env = {f"V{number}_{n}": "x" * 100_000 for n in range(10)}
    body = {"argv": ["/bin/true"], "cwd": "/tmp", "stdout": "/dev/null", "held": True, "env": env}
    return request("/v1/jobs", json.dumps(body).encode())


@needs_root
def test_unfinished_bodies_take_little_memory(carmad: Carmad) -> None:
    carmad.stop()
    carmad.start_cold(first="from carmad.http import bounds; bounds.BODY_WITHIN_S = 2.0")
    before = peak_rss_mib(carmad)
    part = request("/v1/jobs", b'"' + b"x" * 7_000_000, 8_000_000)

    def attack() -> int:
        held = []
        for _ in range(250):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(carmad.socket)
            connection.settimeout(0.02)
            with suppress(OSError):
                connection.sendall(part)
            held.append(connection)
        raw(carmad.socket, HEALTH)  # by now all were looked at
        return len(held)

    assert as_user(NOBODY, attack) == 250
    assert peak_rss_mib(carmad) - before < 100
    assert carmad.submit("/bin/true", held=True) == 1


@needs_root
def test_json_bombs_are_not_parsed_and_who_goes_on_is_put_off(carmad: Carmad) -> None:
    before = peak_rss_mib(carmad)
    bomb = request("/v1/jobs", BOMB)

    def attack() -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return [answer.decode() for _, answer in pool.map(raw, [carmad.socket] * 8, [bomb] * 8)]

    answers = as_user(NOBODY, attack)
    refused = [answer for answer in answers if answer.startswith("HTTP/1.1 429")]
    assert len(refused) >= 4
    assert all("retry-after: " in each and '"code":"too_many"' in each for each in refused)
    assert all(each.startswith("HTTP/1.1 413") for each in answers if each not in refused)
    assert peak_rss_mib(carmad) - before < 100
    assert as_user(HOSTILE[1], lambda: statuses(carmad.socket, [bomb])) == [413]


@needs_root
def test_short_requests_have_short_bodies(carmad: Carmad) -> None:
    long = request("/v1/cancel", b'{"select": "' + b"1," * 50_000 + b'1"}')
    assert as_user(NOBODY, lambda: statuses(carmad.socket, [long])) == [413]


@needs_root
def test_large_environments_fill_neither_memory_nor_disk(carmad: Carmad) -> None:
    before = peak_rss_mib(carmad)
    first = [submission(number % 10) for number in range(15)]
    assert as_user(NOBODY, lambda: statuses(carmad.socket, first)) == [201] * 15
    second = [submission(number) for number in range(10, 25)]
    answers = as_user(HOSTILE[1], lambda: statuses(carmad.socket, second))
    assert answers[:10] == [201] * 10 and set(answers) <= {201, 409, 429}
    assert peak_rss_mib(carmad) - before < 100
    carmad.stop()
    taken = sum(path.stat().st_size for path in carmad.state.glob("carma.db*"))
    assert taken < 1.2 * 1_000_000 * 25


@needs_root
def test_who_has_too_much_waiting_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        quota = {"CARMA_LIMITS__QUEUED_MIB_PER_USER": "3"}
        with daemon.running(Path(folder), **quota) as carmad:
            wanted = [submission(number) for number in range(8)]
            answers = as_user(NOBODY, lambda: statuses(carmad.socket, wanted))
            assert answers == [201] * 3 + [409] * 5
            assert len(carmad.get("/v1/jobs")["jobs"]) == 3
            assert carmad.submit("/bin/true", held=True) == 4


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_head_that_trickles_in_does_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    with api_server.running(tmp_path) as served, socket.socket(socket.AF_UNIX) as trickling:
        monkeypatch.setattr(server, "HEAD_WITHIN_S", 0.3)  # uvicorn's own timer has 30 s
        trickling.connect(served.path)
        trickling.settimeout(PATIENCE_S)
        if asked_before:
            trickling.sendall(b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n")
            while not trickling.recv(65536).endswith(b"}"):
                pass
        head = iter(b"GET /v1/health HTTP/1.1\r\nX: ")

        def cut_off() -> bool:
            try:
                trickling.sendall(bytes([next(head, ord("x"))]))
            except OSError:
                return True
            return False

        until(cut_off, "it to be cut off")


@pytest.mark.parametrize("endless", [b"a: b\r\n" * 10_000, b"a: " + b"b" * 60_000])
def test_what_goes_on_around_a_body_has_an_end(tmp_path: Path, endless: bytes) -> None:
    """Trailers took 10 MB of memory for each MB, from any user."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with api_server.running(tmp_path) as served, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(served.path)
        connection.settimeout(PATIENCE_S)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(head + endless * 100)


def test_a_body_in_small_parts_is_taken(tmp_path: Path) -> None:
    head = b"POST /v1/jobs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
    with api_server.running(tmp_path) as served:
        parts = b"400\r\n%b\r\n" % (b" " * 1024) * 2000
        status, _ = raw(served.path, head + parts + b"2\r\n{}\r\n0\r\n\r\n")
    assert status == 422


@needs_root
def test_a_user_s_many_connections_keep_nobody_else_out(carmad: Carmad) -> None:
    """Those that may be are streams that nobody reads; the others are refused in words."""
    with _holding(NOBODY, carmad.socket, connections.PER_USER):
        assert as_uid(HOSTILE[1], carmad.socket, "GET", "/v1/health")[0] == 200
        said = as_user(NOBODY, lambda: raw(carmad.socket, HEALTH)[1].decode())
        assert " 503 " in said and "too many connections" in said and "retry-after: " in said
    until(
        lambda: as_user(NOBODY, lambda: raw(carmad.socket, HEALTH)[0]) == 200,
        "the connections to be seen closed",
    )


@contextmanager
def _holding(uid: int, path: str, many: int) -> Iterator[None]:
    """A process of this uid that has so many connections open, or has tried."""
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        held = [socket.socket(socket.AF_UNIX) for _ in range(many)]
        for one in held:
            with suppress(OSError):
                one.connect(path)
                one.sendall(STREAM)
        os.write(said, b"!")
        signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(said)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
