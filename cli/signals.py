"""Signals to `carma run`, passed on to its command unless it gets them anyhow.

A terminal signals its whole foreground, and so does a Slurm without cgroups its job. A program that
saves its state at the first SIGTERM may well give up at the second.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

LEAVING = (signal.SIGHUP, signal.SIGTERM)
TOLD = (signal.SIGUSR1, signal.SIGUSR2)  # as by Slurm before a time limit
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_WATCHED = (signal.SIGCHLD, signal.SIGCONT)


def not_ignored(signums: tuple[signal.Signals, ...]) -> list[signal.Signals]:
    """Without those that whoever started us has made us ignore, as nohup does."""
    return [one for one in signums if signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def hold_back() -> Iterator[None]:
    """Signals wait for `await_end`. A child calls `undo`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _awaited())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def undo() -> None:
    """As the command should find signals: nothing held back, nothing handled by Python."""
    ours = not_ignored((*LEAVING, *TOLD, *FROM_TERMINAL))
    for signum in (*ours, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _awaited())


def await_end(child: int, each_s: float, meanwhile: Callable[[], None]) -> None:
    """Wait for the command, without reaping it, and pass signals on to it.

    If it alone is stopped, as by a shell's `suspend`, stop as well, so that the calling shell takes
    over.
    """
    waited_for = _awaited()
    ending = False  # Slurm wakes what it is about to end
    while True:
        got = signal.sigtimedwait(waited_for, each_s)
        if got is None:
            meanwhile()
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
    """What still waits: the command has ended."""
    while signal.sigtimedwait(_awaited(), 0):
        pass


def _awaited() -> AbstractSet[signal.Signals]:
    return {*not_ignored((*LEAVING, *TOLD, *FROM_TERMINAL)), *_WATCHED}


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
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        return file.read().rpartition(b")")[2].split()[0] == b"T"


def _goes_to_all(slurmstepd: int, ending: bool) -> bool:
    """Whether slurmstepd signals all processes. Where it has cgroups, it signals those that it
    started itself; elsewhere all, unless it means the batch script alone, as by `--signal=B:USR1`,
    and we are in its place by `exec`."""
    with open("/proc/self/cgroup", "rb") as file:  # noqa: PTH123
        if b"slurm" in file.read():
            return False
    in_its_place = os.getppid() == slurmstepd and "SLURM_STEP_ID" not in os.environ
    return ending or not in_its_place


def _name(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return b""  # it has ended, or is hidden
