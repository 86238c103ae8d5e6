"""What `carma` reports and repeats when carmad dies during a request or is not running."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from carma_client import transport
from carmad import paths
from cli import client
from cli.problems import Unreachable

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"good": 42}'
Behaviour = Callable[[socket.socket], None]


@pytest.mark.parametrize("value", ["ann", "a b", "R,PD", "a&b=c", "é", "a_b", "", "x%20"])
def test_a_query_says_what_it_is_given(value: str) -> None:
    query = transport.with_query("/v1/jobs", {"user": value, "fold": True, "select": None})
    assert parse_qs(urlsplit(query).query, keep_blank_values=True) == {
        "user": [value],
        "fold": ["True"],
    }


def receive(connection: socket.socket) -> None:
    """The whole request."""
    with connection.makefile("rb") as file:
        size = 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        file.read(size)


def answer(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(ANSWER)


def die(connection: socket.socket) -> None:
    receive(connection)


def die_in_the_middle(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(ANSWER[:-4])


def die_unheard(connection: socket.socket) -> None:
    connection.recv(10)


class Dying:
    """Handles each connection by the next behaviour; after the last, nobody listens."""

    def __init__(self, path: Path) -> None:
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def behave(self, *behaviours: Behaviour) -> None:
        threading.Thread(target=self._serve, args=(behaviours,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self, behaviours: tuple[Behaviour, ...]) -> None:
        for behave in behaviours:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the test is over
                return
            with connection:
                self.connections += 1
                behave(connection)
        self._listener.close()


@pytest.fixture
def carmad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dying]:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "sock"))
    monkeypatch.setattr(transport, "LOOK_S", 0.01)
    monkeypatch.setattr(transport, "BACK_WITHIN_S", 0.05)
    dying = Dying(tmp_path / "sock")
    yield dying
    dying.close()


def die_in_the_head(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(ANSWER[:20])


@pytest.mark.parametrize("death", [die, die_in_the_middle, die_in_the_head])
def test_a_question_is_asked_again_when_carmad_died_over_it(
    carmad: Dying, death: Behaviour
) -> None:
    carmad.behave(death, answer)
    assert client.get("/v1/health") == {"good": 42}
    assert carmad.connections == 2


def test_the_limit_is_for_each_part_that_is_sent(carmad: Dying) -> None:
    def read_slowly(pause_s: float, connection: socket.socket) -> None:
        received = 0
        while received < 1_000_000 and (part := connection.recv(1 << 15)):
            received += len(part)
            time.sleep(pause_s)
        with contextlib.suppress(OSError):
            connection.sendall(ANSWER)

    pauses_s = 0.02, 0.2, 2.0  # if this machine is so busy that they become longer
    carmad.behave(*(partial(read_slowly, pause_s) for pause_s in pauses_s))
    for pause_s in pauses_s:
        with contextlib.suppress(Unreachable):
            said = client.post("/v1/jobs", {"argv": ["x" * 1_000_000]}, 10 * pause_s)
            assert said == {"good": 42}
            return
    pytest.fail("what takes longer than the limit in all was given up")


def test_one_that_does_not_come_back_is_not_waited_for_for_ever(carmad: Dying) -> None:
    carmad.behave(die)
    with pytest.raises(Unreachable):
        client.get("/v1/health")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/jobs", "not known whether the job was submitted: check with `carma queue`"),
        ("/v1/cancel", "repeat it; doing it twice does no harm"),
    ],
)
def test_what_may_have_been_done_is_not_done_again(carmad: Dying, path: str, hint: str) -> None:
    carmad.behave(die, answer)
    with pytest.raises(Unreachable) as raised:
        client.post(path, {})
    assert hint in raised.value.hint
    assert carmad.connections == 1


def test_what_changes_nothing_is_repeated_like_a_question(carmad: Dying) -> None:
    carmad.behave(die, answer)
    assert client.post("/v1/estimate", {}, again=True) == {"good": 42}
    assert carmad.connections == 2


def test_what_was_not_heard_was_not_done(carmad: Dying) -> None:
    carmad.behave(die_unheard)
    with pytest.raises(Unreachable) as raised:
        client.post("/v1/jobs", {"env": "x" * (8 << 20)})  # more than a socket buffers
    assert "nothing was done" in raised.value.hint


def test_a_socket_that_is_gone_is_systemds_to_make_where_it_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARMA_SOCKET", raising=False)
    monkeypatch.setattr(paths, "user_runtime_dir", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", str(tmp_path / "carmad.sock"))
    unit = tmp_path / "carmad.socket"
    monkeypatch.setattr(transport, "UNIT", str(unit))
    with pytest.raises(Unreachable) as raised:
        client.get("/v1/health")
    assert "carma daemon start" in raised.value.hint
    unit.touch()
    with pytest.raises(Unreachable) as raised:
        client.get("/v1/health")
    assert "sudo systemctl restart carmad.socket carmad" in raised.value.hint
