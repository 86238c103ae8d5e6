"""Estimates where there is no daemon: a process of the user's that answers `carma estimate`, and
keeps warm tracers, until nobody has asked for a while.

Its argument is the path of its socket, in a directory that is the user's alone. A file beside it,
with `.lock` added, has its pid and is locked while it lives. A connection is one question: `body`
and `explain` as for `/v1/estimate`, in JSON, until the other side writes no more. The answer is the
API's, or `error` and `hint`. If the other side hangs up, it is given up.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from carmad.errors import CarmaError

IDLE_S = 600.0
LOOK_S = 5.0


def main() -> None:
    path = Path(sys.argv[1])
    os.chdir("/")
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # there is one
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        try:
            _Server(path, listener).run()
        finally:
            path.unlink(missing_ok=True)


class _Server:
    def __init__(self, path: Path, listener: socket.socket) -> None:
        self._path = path
        self._listener = listener
        self._asking: set[threading.Thread] = set()

    def run(self) -> None:
        from carmad.api.guesses import Alone  # when whoever started this can connect

        idle_since = time.monotonic()
        with contextlib.closing(Alone()) as alone:
            while time.monotonic() - idle_since < IDLE_S and self._path.exists():
                if select.select([self._listener], [], [], LOOK_S)[0]:
                    connection, _ = self._listener.accept()
                    thread = threading.Thread(target=_serve, args=(connection, alone), daemon=True)
                    thread.start()
                    self._asking.add(thread)
                self._asking = {thread for thread in self._asking if thread.is_alive()}
                if self._asking:
                    idle_since = time.monotonic()


def _serve(connection: socket.socket, alone: Any) -> None:
    with connection, contextlib.suppress(OSError):
        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", who)[1] != os.getuid():
            return
        asked = json.loads(_read(connection))
        abandoned, answered = threading.Event(), threading.Event()
        watch = threading.Thread(target=_watch, args=(connection, abandoned, answered))
        watch.start()
        try:
            answer: Any = alone.estimate(asked["body"], asked["explain"], abandoned)
        except CarmaError as error:
            answer = {"error": error.message, "hint": error.hint}
        finally:
            answered.set()
        connection.sendall(json.dumps(answer).encode())


def _read(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def _watch(
    connection: socket.socket, abandoned: threading.Event, answered: threading.Event
) -> None:
    """Until it is answered; or the other side has hung up."""
    poller = select.poll()
    poller.register(connection, 0)
    while not answered.wait(0.2):
        if poller.poll(0):
            abandoned.set()
            return


if __name__ == "__main__":
    main()
