"""A tracer that has imported torch and waits: each order is the trial of one script, in a child.

It runs no script itself. It is confined as every tracer is, and so are its children, which go on
from here as if they had just been started: with the order's directory, environment, arguments,
output and limits. Orders come as packets on file descriptor 3, from whoever keeps this process.
When it has been outdated by a change to a file that it has loaded, or cannot be forked because of
a thread, it says so and ends.

Between two orders it imports libraries that earlier scripts imported (`shelf`).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .answering import ANSWER_FD, HIGH
from .scratch import count_changes
from .shelf import Shelf, library_names

ORDER, REST = b"order", b"rest"  # what it is told
READY, COLD = b"ready", b"cold"  # what it says, and `ended STATUS`
PACKET_BYTES = 64
_stat, _fork = os.stat, os.fork  # `scratch` and `made_up` replace them


@dataclass(frozen=True)
class Order:
    """The trial of one script."""

    words: list[str]  # the tracer's options, the script or -m or -c, and its arguments
    cwd: str
    env: dict[str, str]
    umask: int
    began: float  # by the monotonic clock

    @classmethod
    def loads(cls, text: bytes) -> Order:
        return cls(**json.loads(text))


class Warm:
    def __init__(self) -> None:
        """Call this before sockets are refused."""
        self._socket = socket.socket(fileno=_high(ANSWER_FD))
        self._notes = _high(os.memfd_create("carma-modules"))  # of the last script

    def serve(self, recorder: Any) -> Order:
        """Fork a child for each order. Returns in the child only, with the order."""
        self._shelf = Shelf(self._give_up)
        self._seen = recorder
        self._files = _files()
        os.chdir("/")
        gc.collect()
        gc.freeze()
        if not _is_alone():
            self._leave()
        self._socket.send(READY)
        while True:
            packet, fds, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, 3)
            if packet == ORDER:
                order = self._try(*fds)
                if order is not None:
                    return order
            elif packet == REST:
                self._import_more()
            else:
                os._exit(0)

    def note_modules(self) -> None:
        """In the child: what the script has imported from installed packages, for later ones."""
        with contextlib.suppress(OSError):
            os.pwrite(self._notes, "\n".join(library_names()).encode(), 0)

    def _try(self, request: int, output: int, answer: int) -> Order | None:
        """The order, in the child; None in this process, once the child has ended."""
        order = Order.loads(_read(request))
        if self._files != _files(self._files):
            self._leave()
        try:
            os.chdir(order.cwd)
        except OSError:
            self._leave()
        os.ftruncate(self._notes, 0)
        pid = _fork()
        if pid == 0:
            self._become(order, output, answer)
            return order
        for fd in (request, output, answer):
            os.close(fd)
        os.chdir("/")
        _, status = os.waitpid(pid, 0)
        self._socket.send(COLD if _read(self._notes) == COLD else b"ended %d" % status)
        return None

    def _become(self, order: Order, output: int, answer: int) -> None:
        os.setsid()
        self._socket.close()
        os.umask(order.umask)
        os.environ.clear()
        os.environ.update(order.env)
        for target, fd in ((1, output), (2, output), (ANSWER_FD, answer)):
            os.dup2(fd, target)
        importlib.invalidate_caches()
        self._shelf.hide()

    def _give_up(self) -> NoReturn:
        """In the child: the script needs a new process."""
        os.ftruncate(self._notes, 0)
        os.pwrite(self._notes, COLD, 0)
        os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _leave(self) -> NoReturn:
        """Whoever asked has to start a new process."""
        self._socket.send(COLD)
        os._exit(0)

    def _import_more(self) -> None:
        """What the last script has imported. Ends this process if that leaves it unfit: with a
        thread, a changed file, a tensor on the GPU, a note, or something made up that it was
        told."""
        new = self._shelf.missing(_read(self._notes).decode().split())
        if not new:
            return
        changes = count_changes()
        self._shelf.fill(new)
        used = self._seen.events or self._seen.made_up or self._seen.notes
        if used or not _is_alone() or count_changes() != changes:
            os._exit(0)
        self._files = _files()
        gc.collect()
        gc.freeze()


def _high(fd: int) -> int:
    """Another descriptor for it, which no script expects to be free."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(fd)
    return high


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)


def _is_alone() -> bool:
    """There is one thread, so that a fork copies no lock that another one holds."""
    return _stat("/proc/self/task").st_nlink == 3  # itself, its parent, and one of the thread


def _files(known: Any = None) -> dict[str, tuple[int, int]]:
    """When what this process is made of was changed, and its size: the files of its modules, and
    the folders of packages, with what says where else there are some."""
    paths = known if known is not None else _paths()
    found = {}
    for path in paths:
        try:
            status = _stat(path)
        except OSError:
            found[path] = (0, 0)
        else:
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _paths() -> list[str]:
    paths = [sys.executable]
    for folder in (each for each in sys.path if each.endswith("-packages")):
        paths.append(folder)
        paths += map(str, Path(folder).glob("*.pth"))
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str):
            paths.append(path)
    return paths
