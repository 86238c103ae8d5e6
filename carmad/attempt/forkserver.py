"""The process from which supervisors, attendants and other helpers are forked: it has imported what
they need, so none of them has to start a Python of its own.

One request is one child. `main` takes the path of a socket to listen on, or, without one, has its
only connection as standard input. Each connection is greeted with a `fingerprint` of the code. A
request is a packet of NUL-separated words: the module and the function to call, the child's name,
the file descriptors as which it is to have those that come with the packet (SCM_RIGHTS), and its
arguments. The answer is the child's pid, with a pidfd of it; or the number of an error, negative.

It ends when nobody is connected and no child is left. Killing it does no harm: its children go on,
and `forks` starts another one. It holds nothing of any job. There is one thread, so that a fork
copies no lock that another thread holds.

Standard library only, and little of it, as this memory is every supervisor's.
"""
# pathlib and contextlib would be a part of it:
# ruff: noqa: PTH104, PTH108, PTH116, PTH120, PTH208, SIM105

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import struct
import sys
import zlib
from importlib import import_module

from carmad.attempt.cgroup import SERVER, settle, unit_cgroup
from carmad.attempt.proc import read_file
from carmad.attempt.starting import block, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

REQUEST_BYTES, ANSWER_BYTES, MOST_FDS = 1 << 16, 64, 8
FIRST_WITHIN_S = 30.0  # whoever started it connects by then
HIGH = 64  # descriptors from here on are nobody's target
PR_SET_NAME = 15
HANDLED = (signal.SIGCHLD, signal.SIGTERM)


def fingerprint() -> bytes:
    """Of the code that a server which starts now would have."""
    here = os.path.dirname(__file__)
    found = [sys.version, here]
    for name in sorted(os.listdir(here)):
        if name.endswith(".py"):
            status = os.stat(f"{here}/{name}")
            found.append(f"{name} {status.st_mtime_ns} {status.st_size}")
    return b"%08x" % zlib.crc32("\n".join(found).encode("utf-8", "surrogateescape"))


def main() -> None:
    _Server(sys.argv[1] if len(sys.argv) > 1 else "").run()


class _Server:
    def __init__(self, path: str) -> None:
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
        self._listener: socket.socket | None = None
        if path:
            self._listen()
        else:
            self._serve(socket.socket(fileno=0))
        import_module("carmad.attempt.supervisor")
        gc.collect()
        gc.freeze()

    def _listen(self) -> None:
        """Replace whatever has this path: a server that has gone, or one that must not get any more
        requests."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        with ShortPath(self._path) as name:
            self._listener.bind(f"{name}.{os.getpid()}")
            os.umask(mask)
            self._listener.listen()
            self._inode = os.stat(f"{name}.{os.getpid()}").st_ino
            os.rename(f"{name}.{os.getpid()}", name)
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
                elif self._listener is not None:
                    self._accept(self._listener)
            self._reap()
            if self._children or (self._connections and not self._stopped):
                pause_s = None
            elif pause_s is None or not ready:
                break
        if self._listener is not None:
            try:
                with ShortPath(self._path) as name:
                    if os.stat(name).st_ino == self._inode:
                        os.unlink(name)
            except FileNotFoundError:
                pass  # another one had taken its place, and has gone, too

    def _accept(self, listener: socket.socket) -> None:
        connection = listener.accept()[0]
        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", who)[1] in (0, os.geteuid()):
            self._serve(connection)
        else:
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.send(self._greeting)
        except OSError:
            return
        self._connections[connection.fileno()] = connection
        self._poller.register(connection, select.POLLIN)

    def _answer(self, fd: int) -> None:
        connection = self._connections[fd]
        try:
            request, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, MOST_FDS)
        except OSError:
            request, fds = b"", []
        if not request:
            self._poller.unregister(connection)
            del self._connections[fd]
            connection.close()
            return
        pidfd = -1
        try:
            pid, pidfd = self._fork(os.fsdecode(request).split("\0"), fds)
            socket.send_fds(connection, [b"%d" % pid], [pidfd])
        except OSError as error:  # no process can be started now, or nobody waits for the answer
            try:
                connection.send(b"%d" % -(error.errno or 1))
            except OSError:
                pass
        finally:
            for each in (*fds, pidfd):
                if each >= 0:
                    os.close(each)

    def _fork(self, words: list[str], fds: list[int]) -> tuple[int, int]:
        module, function, name, targets, *words = words
        if module not in sys.modules:
            import_module(module)
            gc.freeze()
        block(*range(1, 65))  # none may reach a child that would handle it as we do
        try:
            pid = os.fork()
            if pid == 0:
                given = dict(zip(map(int, targets.split()), fds, strict=True))
                _become(module, function, name, words, given)
            self._children.add(pid)  # before a SIGTERM can come
        finally:
            block()
        return pid, os.pidfd_open(pid)

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


class ShortPath:
    """A path of any length to what is in a directory: a socket's name may have 107 bytes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> str:
        directory, name = os.path.split(self._path)
        self._fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._fd}/{name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _become(
    module: str, function: str, name: str, words: list[str], fds: dict[int, int]
) -> NoReturn:
    """In the child: be as if a new Python had been started. The server's sockets are closed, and
    their objects must outlive this: whoever collects them would close what has these numbers now.
    """
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        for signum in HANDLED:
            signal.signal(signum, signal.SIG_DFL)
        block()
        os.setsid()
        _take(fds)
        _rename(name, words)
        sys.argv[1:] = words
        getattr(sys.modules[module], function)()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  (a forked child must never return)
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _take(fds: dict[int, int]) -> None:
    """Have these file descriptors under these numbers; nothing else but standard error, and
    /dev/null as standard input and output."""
    null = os.open("/dev/null", os.O_RDWR)
    wanted = {0: null, 1: null, **fds}
    high = {target: fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for target, fd in wanted.items()}
    for target, fd in high.items():
        os.dup2(fd, target)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in {2, *wanted}:
            try:
                os.close(fd)
            except OSError:
                pass  # it was that of the listing


def _rename(name: str, words: list[str]) -> None:
    """What `ps` shows: the name, and where the server's arguments were, the name with its own."""
    libc.prctl(PR_SET_NAME, os.fsencode(name), 0, 0, 0)
    fields = read_file("/proc/self/stat").rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if end > begin > 0:
        shown = os.fsencode("\0".join((name, *words)))[: end - begin - 1]
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, shown, len(shown))
