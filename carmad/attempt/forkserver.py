"""The process from which supervisors are forked: it has imported what they need, so none of them
has to start a Python of its own.

`main` takes the path of a socket to listen on. Each connection is greeted with a `fingerprint` of
the code. A request is a packet with the directory of an attempt, and one request is one child. The
answer is 0, or the number of an error.

It ends when nobody is connected and no child is left. Killing it does no harm: its children go on,
and `forks` starts another one. It holds nothing of any job. There is one thread, so that a fork
copies no lock that another thread holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from carmad.attempt import supervisor
from carmad.attempt.cgroup import SERVER, settle, unit_cgroup
from carmad.attempt.proc import read_file
from carmad.attempt.starting import block, libc

REQUEST_BYTES, ANSWER_BYTES = 1 << 16, 64
FIRST_WITHIN_S = 30.0  # whoever started it connects by then
PR_SET_NAME = 15
LOG = "supervisor.log"  # in an attempt's directory: what a supervisor prints is a bug's traceback
HANDLED = (signal.SIGCHLD, signal.SIGTERM)


def fingerprint() -> bytes:
    """Of the code that a server which starts now would have."""
    here = Path(__file__).parent
    found = [sys.version, str(here)]
    for path in sorted((*here.glob("*.py"), *here.parent.glob("*.py"))):
        status = path.stat()
        found.append(f"{path.name} {status.st_mtime_ns} {status.st_size}")
    return b"%08x" % zlib.crc32("\n".join(found).encode("utf-8", "surrogateescape"))


def main() -> None:
    _Server(Path(sys.argv[1])).run()


class _Server:
    def __init__(self, path: Path) -> None:
        self._greeting = fingerprint()
        self._path = path
        self._stopped = False
        self._children: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        self._poller = select.poll()
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if unit := unit_cgroup(SERVER):
            signal.signal(signal.SIGTERM, lambda *_: self._stop())
            settle(unit)
        self._poller.register(self._wake, select.POLLIN)
        self._listen()
        gc.collect()
        gc.freeze()

    def _listen(self) -> None:
        """Replace whatever has this path: a server that has gone, or one that must not get any more
        requests."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        with short_path(self._path) as path:
            own = path.with_name(f"{path.name}.{os.getpid()}")
            self._listener.bind(str(own))
            os.umask(mask)
            self._listener.listen()
            self._inode = own.stat().st_ino
            own.rename(path)
        self._poller.register(self._listener, select.POLLIN)

    def run(self) -> None:
        pause_s: float | None = FIRST_WITHIN_S
        while True:
            ready = self._poller.poll(None if pause_s is None else pause_s * 1000)
            for fd, _ in ready:
                if fd == self._wake:
                    os.read(fd, 4096)
                elif self._stopped:
                    self._poller.unregister(fd)
                elif fd in self._connections:
                    self._answer(fd)
                else:
                    self._accept()
            self._reap()
            if self._children or (self._connections and not self._stopped):
                pause_s = None
            elif pause_s is None or not ready:
                break
        # Unless another one has taken its place.
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _accept(self) -> None:
        connection = self._listener.accept()[0]
        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        with contextlib.suppress(OSError):
            if struct.unpack("3i", who)[1] in (0, os.geteuid()):
                connection.send(self._greeting)
                self._connections[connection.fileno()] = connection
                self._poller.register(connection, select.POLLIN)

    def _answer(self, fd: int) -> None:
        connection, directory = self._connections[fd], b""
        with contextlib.suppress(OSError):
            directory = connection.recv(REQUEST_BYTES)
        if not directory:
            self._poller.unregister(connection)
            del self._connections[fd]
            connection.close()
            return
        error = 0
        try:
            self._fork(os.fsdecode(directory))
        except OSError as failure:  # no process can be started now
            error = failure.errno or 1
        with contextlib.suppress(OSError):  # nobody waits for it any more
            connection.send(b"%d" % error)

    def _fork(self, directory: str) -> None:
        log = os.open(f"{directory}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        block(*signal.valid_signals())  # none may reach a child that would handle it as we do
        try:
            pid = os.fork()
            if pid == 0:
                _supervise(directory, log)
            self._children.add(pid)  # before a SIGTERM can come
        finally:
            block()
            os.close(log)

    def _reap(self) -> None:
        while self._children:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)

    def _stop(self) -> None:
        """The machine is shutting down: tell the supervisors, and start no more."""
        self._stopped = True
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """A path of any length to what is in a directory: a socket's name may have 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{directory}", path.name)
    finally:
        os.close(directory)


def _supervise(directory: str, log: int) -> NoReturn:
    """In the child: be as if a new Python had been started. The server's sockets are closed, and
    their objects must outlive this: whoever collects them would close what has these numbers now.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for signum in HANDLED:
            signal.signal(signum, signal.SIG_DFL)
        block()
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd, target in ((null, 0), (null, 1), (log, 2)):
            os.dup2(fd, target)
        # Not up to the limit of open files, which may be a billion: some Pythons try each.
        highest = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
        os.closerange(3, highest + 1)
        _rename(f"carma:{Path(directory).name}", directory)
        sys.argv[1:] = [directory]
        supervisor.main()
        code = 0
    except BaseException:  # noqa: BLE001  (a forked child must never return)
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _rename(name: str, directory: str) -> None:
    """What `ps` shows: the name, and, where the server's arguments were, also the directory."""
    libc.prctl(PR_SET_NAME, os.fsencode(name), 0, 0, 0)
    fields = read_file("/proc/self/stat").rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if end > begin > 0:
        shown = os.fsencode(f"{name}\0{directory}")[: end - begin - 1]
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, shown, len(shown))
