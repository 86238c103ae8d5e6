"""Starts processes by having a fork server fork them (`forkserver`), and starts the server when
there is none that answers.

Whoever asks may repeat what was not answered: a server that was killed may have forked the child or
not. So whatever is started this way does no harm when it is started twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, pidfd_send_signal
from threading import Lock

from carmad.attempt.forkserver import ANSWER_BYTES, ShortPath, fingerprint
from carmad.attempt.starting import program

ANSWER_WITHIN_S = 5.0  # a fork takes a millisecond
START_WITHIN_S = 10.0  # for a Python to start
LOOK_S = 0.005
KEPT = ("TZ",)  # of the environment: the server has no other variable


@dataclass(frozen=True, slots=True)
class Child:
    """A process that is nobody's to reap: the server does."""

    pid: int
    pidfd: int

    def has_ended(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self.pidfd], [], [], within_s)[0])

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            pidfd_send_signal(self.pidfd, SIGKILL)

    def close(self) -> None:
        os.close(self.pidfd)


class Forks:
    """The fork server at `path`, which outlives this process and serves the next one; None: one
    that only this process knows, and which ends with it.

    `spawn` runs a command so that it outlives this process; by default, as a child of it.
    """

    def __init__(
        self, path: Path | None = None, spawn: Callable[[Sequence[str]], None] | None = None
    ) -> None:
        self._path = path
        self._spawn = spawn
        self._lock = Lock()
        self._connection: socket.socket | None = None
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(
        self, module: str, function: str, name: str, *words: str, fds: Mapping[int, int] = {}
    ) -> Child:
        """Call that function in a new process with that name, with `words` as arguments, and with
        `fds`: its file descriptors, and which of ours they are. Raises OSError if there is none;
        but after a TimeoutError, there may be one."""
        targets = " ".join(map(str, fds))
        request = os.fsencode("\0".join((module, function, name, targets, *words)))
        with self._lock:
            try:
                return self._ask(request, list(fds.values()))
            except ConnectionError:  # it has ended since, or was killed: now, another one is asked
                return self._ask(request, list(fds.values()))

    def _ask(self, request: bytes, fds: list[int]) -> Child:
        try:
            connection = self._connection = self._connection or self._connect()
            socket.send_fds(connection, [request], fds)
            answer, pidfds, _, _ = socket.recv_fds(connection, ANSWER_BYTES, 1)
            if not answer:
                raise ConnectionResetError("the fork server has ended")
        except TimeoutError as error:
            self._disconnect()
            raise TimeoutError("the fork server does not answer") from error
        except OSError:
            self._disconnect()
            raise
        if (pid := int(answer)) < 0:
            raise OSError(-pid, os.strerror(-pid))
        return Child(pid, pidfds[0])

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> socket.socket:
        """A connection to a server that has our code: the one that is there, or a new one."""
        self._servers = [server for server in self._servers if server.poll() is None]
        if self._path is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._run(program("carmad.attempt.forkserver"), theirs.fileno())
            _greet(ours, START_WITHIN_S)
            return ours
        if found := _find(self._path):
            return found
        (self._spawn or self._run)([*program("carmad.attempt.forkserver"), str(self._path)])
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            if found := _find(self._path):
                return found
            if self._servers and self._servers[-1].poll() is not None:
                raise ConnectionResetError("the fork server ended before it answered")
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(LOOK_S)

    def _run(self, argv: Sequence[str], stdin: int = subprocess.DEVNULL) -> None:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._servers.append(
            subprocess.Popen(
                argv,
                env=env,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        )


def _find(path: Path) -> socket.socket | None:
    """A connection to the server there; None: there is none, or it has other code than we."""
    with contextlib.suppress(OSError):
        found = _open(path)
        if _greet(found, ANSWER_WITHIN_S) == fingerprint():
            return found
        found.close()
    return None


def _open(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(ANSWER_WITHIN_S)
        with ShortPath(str(path)) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


def _greet(connection: socket.socket, within_s: float) -> bytes:
    """What it is greeted with. Closes it and raises OSError if it is not."""
    try:
        connection.settimeout(within_s)
        greeting = connection.recv(ANSWER_BYTES)
        if not greeting:
            raise ConnectionResetError("the fork server has ended")
        connection.settimeout(ANSWER_WITHIN_S)
    except OSError:
        connection.close()
        raise
    return greeting


@functools.cache
def helpers() -> Forks:
    """For what this process needs done aside, and what ends with it."""
    return Forks()


def ask(module: str, function: str, *words: str, within_s: float) -> bytes:
    """What a helper writes to its standard output, if it ends in that time; else it is killed.
    Raises OSError, also if it writes nothing."""
    ours, theirs = os.pipe()
    try:
        helper = helpers().start(module, function, "carma:helper", *words, fds={1: theirs})
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        said, deadline = b"", time.monotonic() + within_s
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(ours, 1 << 16)
            if not part and said:
                return said
            if not part:
                raise OSError(f"{module} says nothing")
            said += part
        raise TimeoutError(f"{module} does not answer")
    finally:
        helper.kill()
        helper.close()
        os.close(ours)
