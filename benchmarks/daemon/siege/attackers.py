"""What hostile users run inside: python -m benchmarks.daemon.siege.attackers KIND WORD…, for ever.

Each is a user's own program.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import cast

from benchmarks.daemon.booted import SOCKET
from benchmarks.daemon.http import Hostile, request
from benchmarks.daemon.siege.honest import UNREACHABLE, exchange, job
from carmad.attempt.proc import process_stat, read_file

FOR_EVER_S = 86_400.0
STREAM = request("GET", "/v1/events", version="1.1")
LOOK = request("GET", "/v1/status", version="1.1")


def arrays(tasks: str) -> None:
    """Submit an array, cancel it, and so on."""
    array = job("/bin/true", gpus=1, array={"indices": list(range(int(tasks)))})
    while True:
        with contextlib.suppress(*UNREACHABLE, KeyError):  # nor has a refusal an id
            _, said = exchange("POST", "/v1/jobs", array)
            exchange("POST", "/v1/cancel", {"select": str(said["id"])})


def connections(count: str) -> None:
    """Each asks for the status again as soon as it is answered."""
    selector = selectors.DefaultSelector()
    while True:
        with contextlib.suppress(OSError):
            while len(selector.get_map()) < int(count):
                connection = socket.socket(socket.AF_UNIX)
                selector.register(connection, selectors.EVENT_READ)
                connection.connect(SOCKET)
                connection.sendall(LOOK)
        for key, _ in selector.select(0.2):
            connection = cast(socket.socket, key.fileobj)
            answer = b""
            with contextlib.suppress(OSError):
                answer = connection.recv(1 << 18)
                if answer.endswith(b"}"):
                    connection.sendall(LOOK)
            if not answer:
                selector.unregister(connection)
                connection.close()


def streams(count: str) -> None:
    """Streams of events that nobody reads."""
    held: list[socket.socket] = []
    while True:
        while len(held) < int(count):
            connection = socket.socket(socket.AF_UNIX)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.settimeout(5.0)
            try:
                connection.connect(SOCKET)
                connection.sendall(STREAM)
            except OSError:
                connection.close()
                time.sleep(0.1)
                break
            held.append(connection)
        time.sleep(0.5)
        held = [each for each in held if not is_closed(each)]


def is_closed(connection: socket.socket) -> bool:
    """By the daemon. Reads nothing: what was sent stays in the way."""
    try:
        seen = connection.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    if seen and not seen.startswith(b"HTTP/1.1 4"):
        return False
    connection.close()
    return True


def adopt(pid: str) -> None:
    """Ask for a process to become a job, several at a time."""

    def ask() -> None:
        while True:
            with contextlib.suppress(*UNREACHABLE):
                exchange("POST", "/v1/adopt", {"pid": int(pid)})
            time.sleep(0.05)

    together(*[ask] * 8)


def flood(kind: str) -> None:
    """As `benchmarks.daemon.hostile` attacks."""
    Hostile(SOCKET, time.monotonic() + FOR_EVER_S).attack(int(kind))


def launchers() -> None:
    """Kill each fork server, and every other systemd-run that starts one, as late as dice will have
    it: root's, an accident."""
    dice = Random(7)
    ends: dict[int, float] = {}  # of servers
    while True:
        now = time.monotonic()
        for process in processes():
            with contextlib.suppress(OSError):
                pid, its = int(process.name), (process / "comm").read_text()
                if pid % 2 and its == "systemd-run\n":
                    time.sleep(dice.uniform(0.0, 0.03))
                elif not _is_server(pid) or now < ends.setdefault(pid, now + dice.uniform(0, 2)):
                    continue
                os.kill(pid, signal.SIGKILL)
                print("killed", pid, its, flush=True)
        time.sleep(0.002)


def _is_server(pid: int) -> bool:
    """A child that has only just been forked looks like it, but has another parent."""
    stat = process_stat(pid)
    command = read_file(f"/proc/{pid}/cmdline").split(b"\0")
    return stat is not None and stat[0] == 1 and any(b"attempt.forkserver" in it for it in command)


def processes() -> Iterator[Path]:
    return (each for each in Path("/proc").iterdir() if each.name.isdigit())


def letters(count: str) -> None:
    """Jobs with messages to an address that never answers; and kill whatever sends them."""
    together(lambda: _letters(int(count)), _kill_all_mine)


def _letters(count: int) -> None:
    while True:
        for _ in range(count):
            with contextlib.suppress(*UNREACHABLE):
                exchange("POST", "/v1/jobs", job("/bin/false", gpus=0, notify="all"))
        time.sleep(1.0)


def _kill_all_mine() -> None:
    """Every other process of this user's, whatever it does for carmad."""
    me = os.getpid()
    while True:
        time.sleep(0.2)
        for process in processes():
            pid = int(process.name)
            with contextlib.suppress(OSError):
                if pid != me and process.stat().st_uid == os.getuid():
                    os.kill(pid, signal.SIGSTOP if pid % 2 else signal.SIGKILL)


def together(*loops: Callable[[], None]) -> None:
    threads = [threading.Thread(target=loop) for loop in loops]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


KINDS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (arrays, connections, streams, adopt, flood, launchers, letters)
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
