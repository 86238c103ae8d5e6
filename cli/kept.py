"""What a command writes to its standard error: passed on, and its end kept where the supervisor of
the job looks for it, so that CARMA can tell why the command failed."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress

REST_S = 2.0
KEPT_BYTES = 64 * 1024
PIPE_BYTES = 1 << 20  # the command need not wait for a slow reader before that
# `fcntl` has some of them from Python 3.13 on only.
F_SETPIPE_SZ, F_ADD_SEALS, F_SEAL_WRITE = 1031, 1033, 8


class Kept:
    """The end is in memory that `path` names, for this user alone; it is sealed once complete."""

    def __init__(self) -> None:
        self._memory = _memory()
        self._reads = -1
        self._relay: threading.Thread | None = None
        self.path = f"/proc/{os.getpid()}/fd/{self._memory}"

    def begin(self) -> int:
        """Forget an earlier attempt; returns where the next one is to write."""
        fresh = _memory()
        os.dup2(fresh, self._memory, inheritable=False)
        os.close(fresh)
        self._reads, writes = os.pipe()
        with suppress(OSError):  # beyond the user's limit
            fcntl.fcntl(writes, F_SETPIPE_SZ, PIPE_BYTES)
        return writes

    def relay(self) -> None:
        """Begin to pass on what is written, until nobody can write any more."""
        fds = self._reads, os.dup(self._memory)
        self._relay = threading.Thread(target=_relay, args=fds, daemon=True)
        self._relay.start()

    def end(self) -> None:
        """Pass on the rest. What the command left behind may hold its end open for ever."""
        if self._relay:
            self._relay.join(REST_S)


def _memory() -> int:
    return os.memfd_create("carma-run", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _relay(reads: int, memory: int) -> None:
    size, end, heard = 0, b"", True
    while data := os.read(reads, KEPT_BYTES):
        end = (end + data)[-KEPT_BYTES:]
        size += os.write(memory, data)
        if size > 4 * KEPT_BYTES:
            os.ftruncate(memory, 0)
            size = os.pwrite(memory, end, 0)
            os.lseek(memory, size, os.SEEK_SET)
        if heard:
            heard = _pass_on(data)
    fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE)
    os.close(memory)
    os.close(reads)


def _pass_on(data: bytes) -> bool:
    """False: nobody reads it any more. The command goes on, as if it wrote to a file."""
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        return False
    return True
