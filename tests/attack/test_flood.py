"""What users can do to the daemon by asking: they fill neither its memory nor its disk, and keep
nobody else from being answered."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from carmad.http import bounds, connections, server, turns
from carmad.http.connections import Credentials
from tests import api_server, daemon
from tests.api_server import as_uid, as_user
from tests.attack.users import HOSTILE, needs_root, peak_rss_mib, raw, request, statuses
from tests.daemon import Carmad
from tests.waiting import PATIENCE_S, until

NOBODY = HOSTILE[0]
HEALTH = b"GET /v1/health HTTP/1.0\r\n\r\n"
BOMB = b"[" + b"[]," * 2_600_000 + b"[]]"


@pytest.fixture
def carmad() -> Iterator[Carmad]:
    """In a directory that every user may enter."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with daemon.running(Path(folder)) as running:
            yield running


def submission(number: int, **fields: object) -> bytes:
    env = {f"V{number}_{n}": "x" * 100_000 for n in range(10)}
    body = {
        "argv": ["/bin/true"],
        "cwd": "/tmp",
        "stdout": "/dev/null",
        "held": True,
        "env": env,
        **fields,
    }
    return request("/v1/jobs", json.dumps(body).encode())


@needs_root
def test_unfinished_bodies_take_little_memory(carmad: Carmad) -> None:
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
    first = [submission(number) for number in range(15)]
    same = [submission(0)] * 10
    assert as_user(NOBODY, lambda: statuses(carmad.socket, first + same)) == [201] * 25
    second = [submission(number) for number in range(15, 35)]
    answers = as_user(HOSTILE[1], lambda: statuses(carmad.socket, second))
    assert answers[:10] == [201] * 10 and set(answers) <= {201, 409, 429}
    assert peak_rss_mib(carmad) - before < 100
    carmad.stop()
    taken = sum(path.stat().st_size for path in carmad.state.glob("carma.db*"))
    assert taken < 1.2 * 1_000_000 * 35


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


def test_a_connection_takes_little_at_a_time(tmp_path: Path) -> None:
    """While its body waits for its turn."""
    with api_server.running(tmp_path) as served:
        read: list[int] = []
        monitored = server.PeerProtocol.on_body

        def on_body(self: server.PeerProtocol, body: bytes) -> None:
            monitored(self, body)
            read.append(len(self.cycle.body))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.PeerProtocol, "on_body", on_body)
            body = json.dumps({"select": "1," * 4_000_000}).encode()
            assert raw(served.path, request("/v1/jobs", body))[0] in (413, 422)
        assert max(read) <= turns.LARGE + server.READ_AT_ONCE


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is slow on a busy machine is not cut off."""
    monkeypatch.setattr(server, "HEAD_WITHIN_S", 2 * PATIENCE_S)
    monkeypatch.setattr(bounds, "BODY_WITHIN_S", 2 * PATIENCE_S)


@needs_root
@pytest.mark.usefixtures("unhurried")
def test_uids_without_a_name_have_one_share_together() -> None:
    """As a user's containers have them, by the thousand. Were each a user, they would hold every
    place that there is for large bodies."""
    part = request("/v1/jobs", b'"' + b"x" * 100_000, 8_000_000)
    large = submission(1)
    assert len(large) > turns.LARGE
    with TemporaryDirectory(dir="/tmp") as folder, ExitStack() as held:
        Path(folder).chmod(0o755)
        with api_server.running(Path(folder)) as served:
            for uid in range(123_400_000, 123_400_000 + 2 * turns.LARGE_AT_ONCE):
                connection = held.enter_context(socket.socket(socket.AF_UNIX))
                as_user(uid, lambda: connection.connect(served.path))  # noqa: B023 - at once
                connection.sendall(part)
            assert as_user(HOSTILE[1], lambda: raw(served.path, large)[0]) == 201


@needs_root
@pytest.mark.usefixtures("unhurried")
def test_the_uids_of_a_user_s_containers_have_that_user_s_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every user of Debian's has 65,536 of them."""
    first, uids, each = 300_000, 90, 25
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with TemporaryDirectory(dir="/tmp") as folder:
        subuids = Path(folder) / "subuid"
        subuids.write_text(f"nobody:{first}:65536\nno-such-user:1:2\nnonsense\n")
        monkeypatch.setattr(connections, "SUBUIDS", subuids)
        monkeypatch.setattr(connections, "KEPT_BACK", 100)
        soft = 100 + 2 * connections.PER_USER
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
        Path(folder).chmod(0o755)
        try:
            with api_server.running(Path(folder)) as served, ExitStack() as held:
                for uid in range(first, first + uids):
                    held.enter_context(_holding(uid, served.path, each))
                assert as_uid(HOSTILE[1], served.path, "GET", "/v1/health")[0] == 200
                assert served.call("GET", "/v1/health")[0] == 200  # root
                said = as_user(first + 5, lambda: raw(served.path, HEALTH)[1].decode())
                assert " 503 " in said and "too many connections" in said
                counted = served.server._uvicorn.config.http.counted
                assert connections.FEW < counted._of[NOBODY] <= connections.PER_USER
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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


def connect(path: str, clients: Iterable[socket.socket]) -> None:
    for each in clients:
        each.connect(path)


@needs_root
def test_who_connects_after_another_s_many_is_served_before_most_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel has them in one queue, in order of time."""
    order: list[int] = []
    stalled, go_on = threading.Event(), threading.Event()
    share = bounds.Bounded._share

    async def noted(self: bounds.Bounded, who: Credentials) -> turns.Share:
        if who.uid == 0:  # with the event loop, until all have connected
            stalled.set()
            go_on.wait(PATIENCE_S)
        else:
            order.append(who.uid)
        return await share(self, who)

    monkeypatch.setattr(bounds.Bounded, "_share", noted)
    with TemporaryDirectory(dir="/tmp") as folder, ExitStack() as held:
        Path(folder).chmod(0o755)
        with api_server.running(Path(folder)) as served:
            clients = [held.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(102)]
            first, *many, last = clients
            first.connect(served.path)
            first.sendall(HEALTH)
            assert stalled.wait(PATIENCE_S)
            as_user(HOSTILE[0], lambda: connect(served.path, many))
            as_user(HOSTILE[1], lambda: connect(served.path, [last]))
            for each in (*many, last):
                each.sendall(HEALTH)
            go_on.set()
            last.settimeout(PATIENCE_S)
            assert last.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert order.index(HOSTILE[1]) < 50


def test_without_a_descriptor_who_connects_is_turned_away_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "sock"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connections.Listener(bound, lambda uid: uid) as listener, ExitStack() as fillers:
        listener.listen()
        listener.setblocking(False)
        clients = [fillers.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        for client in clients:
            client.connect(str(tmp_path / "sock"))
        while (fd := os.open(os.devnull, os.O_RDONLY)) < listener._spare:
            fillers.callback(os.close, fd)
        os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (listener._spare + 1, limits[1]))
        try:
            for client in clients[:2]:
                assert not list(listener.take())
                client.settimeout(PATIENCE_S)
                assert client.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        [(third, _)] = listener.take()
        third.close()  # the third is served: there are descriptors again
        os.close(listener._spare)
    assert [each.message for each in caplog.records] == [
        "clients are turned away: Too many open files"
    ]
