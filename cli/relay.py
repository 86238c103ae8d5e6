"""What `carma run` relays: signals to its command, and the command's standard error to its own."""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

LEAVING = (signal.SIGHUP, signal.SIGTERM)
TOLD = (signal.SIGUSR1, signal.SIGUSR2)  # as by Slurm before a time limit
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_WATCHED = (signal.SIGCHLD, signal.SIGCONT)


def select_heeded(signums: tuple[signal.Signals, ...]) -> list[signal.Signals]:
    """Those of `signums` that our parent has not made us ignore, as nohup does."""
    return [one for one in signums if signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def hold_back() -> Iterator[None]:
    """Block signals until `await_end` takes them. A child calls `undo`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def undo() -> None:
    """Give the command default signals: nothing blocked, nothing handled by Python."""
    ours = select_heeded((*LEAVING, *TOLD, *FROM_TERMINAL))
    for signum in (*ours, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals())


def await_end(child: int, next_s: float, meanwhile: Callable[[], float]) -> None:
    """Wait for the command, without reaping it, and pass signals on to it. `meanwhile` is called
    after `next_s` of quiet, and returns the next such time.

    If it alone is stopped, as by a shell's `suspend`, stop as well, so that the calling shell takes
    over.
    """
    waited_for = signals()
    ending = False  # Slurm wakes what it is about to end
    while True:
        got = signal.sigtimedwait(waited_for, next_s)
        if got is None:
            next_s = meanwhile()
        elif got.si_signo == signal.SIGCHLD:
            if _has_ended(child):
                return
        elif got.si_signo not in FROM_TERMINAL:
            by_slurm = _name(got.si_pid) == b"slurmstepd"
            if got.si_signo == signal.SIGCONT:
                ending = by_slurm
            elif not (by_slurm and _goes_to_all(got.si_pid, ending)):
                os.kill(child, got.si_signo)


def forget() -> None:
    """Discard signals that are still pending: the command has ended."""
    while signal.sigtimedwait(signals(), 0):
        pass


def signals() -> AbstractSet[signal.Signals]:
    """Those that `hold_back` blocks."""
    return {*select_heeded((*LEAVING, *TOLD, *FROM_TERMINAL)), *_WATCHED}


def _has_ended(child: int) -> bool:
    any_of = os.WEXITED | os.WSTOPPED | os.WNOWAIT | os.WNOHANG
    while found := os.waitid(os.P_PID, child, any_of):
        if found.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            return True
        os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG)
        if _is_stopped(child):  # Ctrl-Z stops both, and `fg` wakes both
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
    return False


def _is_stopped(pid: int) -> bool:
    with Path(f"/proc/{pid}/stat").open("rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"T"


def _goes_to_all(slurmstepd: int, ending: bool) -> bool:
    """Whether slurmstepd signals all processes. Where it has cgroups, it signals those that it
    started itself; elsewhere all, unless it means the batch script alone, as by `--signal=B:USR1`,
    and we are in its place by `exec`."""
    with Path("/proc/self/cgroup").open("rb") as file:
        if b"slurm" in file.read():
            return False
    in_its_place = os.getppid() == slurmstepd and "SLURM_STEP_ID" not in os.environ
    return ending or not in_its_place


def _name(pid: int) -> bytes:
    try:
        with Path(f"/proc/{pid}/comm").open("rb") as file:
            return file.read().strip()
    except OSError:
        return b""  # it has ended, or is hidden


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
        import threading

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
