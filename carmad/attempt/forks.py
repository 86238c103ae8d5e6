"""Starts supervisors by having a fork server fork them (`forkserver`), and starts the server when
there is none that answers.

Whoever asks may repeat what was not answered: a server that was killed may have forked the child or
not. A supervisor does no harm when it is started twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from carmad.attempt.forkserver import ANSWER_BYTES, fingerprint, short_path
from carmad.attempt.starting import program

ANSWER_WITHIN_S = 5.0  # a fork takes a millisecond
START_WITHIN_S = 10.0  # for a Python to start
LOOK_S = 0.005
KEPT = ("TZ",)  # of the environment: the server has no other variable


Spawn = Callable[[Sequence[str]], subprocess.Popen[bytes] | None]


def run_child(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    null = subprocess.DEVNULL
    return subprocess.Popen(argv, env=env, stdin=null, stdout=null, cwd="/", start_new_session=True)


class Forks:
    """The fork server at `path`, which outlives this process and serves the next one. `spawn` runs
    a command so that it outlives this process; by default, as a child of it."""

    def __init__(self, path: Path, spawn: Spawn = run_child) -> None:
        self._path = path
        self._spawn = spawn
        self._lock = Lock()
        self._connection: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None  # the latest that is a child of ours

    def start(self, directory: Path) -> None:
        """A supervisor of the attempt in this directory. Raises OSError if there is none; but after
        a TimeoutError, there may be one."""
        request = os.fsencode(directory)
        with self._lock:
            try:
                self._ask(request)
            except ConnectionError:  # it has ended since, or was killed: now, another one is asked
                self._ask(request)

    def _ask(self, request: bytes) -> None:
        try:
            connection = self._connection = self._connection or self._connect()
            connection.send(request)
            answer = connection.recv(ANSWER_BYTES)
            if not answer:
                raise ConnectionResetError("the fork server has ended")
        except TimeoutError as error:
            self._disconnect()
            raise TimeoutError("the fork server does not answer") from error
        except OSError:
            self._disconnect()
            raise
        if code := int(answer):
            raise OSError(code, os.strerror(code))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> socket.socket:
        """A connection to a server that has our code: the one that is there, or a new one."""
        if found := _find(self._path):
            return found
        self._server = self._spawn([*program("carmad.attempt.forkserver"), str(self._path)])
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            if found := _find(self._path):
                return found
            if self._server and self._server.poll() is not None:
                raise ConnectionResetError("the fork server ended before it answered")
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(LOOK_S)


def _find(path: Path) -> socket.socket | None:
    """A connection to the server there; None: there is none, or it has other code than we."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(ANSWER_WITHIN_S)
    with contextlib.suppress(OSError), short_path(path) as short:
        connection.connect(str(short))
        if connection.recv(ANSWER_BYTES) == fingerprint():
            return connection
    connection.close()
    return None
