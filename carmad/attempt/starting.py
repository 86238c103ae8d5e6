"""Starts a user's program in a child process, for a job's supervisor and a trial's attendant."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

REPORT_BYTES = 4096
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

HINTS = {
    errno.ENOENT: "check the spelling, a script's #! line, and the PATH you submit with",
    errno.EACCES: "make it executable (chmod +x) and reachable, or name its interpreter",
    errno.ENOEXEC: "give the script a #! line, or name its interpreter: bash SCRIPT",
    errno.E2BIG: "the kernel limits arguments and environment; put the long ones in a file",
}

libc = ctypes.CDLL(None, use_errno=True)


class Launch(NamedTuple):
    """What to run. A str that is not valid text stands for the exact bytes that execve gets, as in
    `os.fsencode`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    uid: int
    gid: int
    groups: Sequence[int]
    umask: int
    cwd: str
    stdout: str
    stderr: str
    grace_s: float
    rlimits: Mapping[str, int] = {}  # soft ones; -1: unlimited
    # Its program is in a container, with the processes of an engine around it.
    contained: bool = False
    # Where a wrapper (conda's) can report that the program could not be started.
    report_fd: int | None = None
    until: float = float("inf")  # in seconds since boot: then it is ended
    # A process that the job's owner started: pid and start time. Then nothing else is run.
    follow: Sequence[int] | None = None
    # Another system's limits hold for it, so it stays in its cgroup.
    stays: bool = False
    cpus: Sequence[int] = ()  # on which it starts; none: any
    # A cgroup to make for the job, where it has no unit; and limits of its cgroup, by file.
    cgroup: str | None = None
    limits: Mapping[str, str] = {}
    # The boot in which the daemon launched it, as the daemon sees it: it may see another one than
    # we do (in a container, or behind ProtectProc=).
    boot_id: str = ""

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        """Raises ValueError or TypeError."""
        return cls(**json.loads(raw))

    def dumps(self) -> bytes:
        return json.dumps(self._asdict()).encode()


def block(*signums: int) -> None:
    """Block these signals and no others, whatever the daemon had blocked when it started us."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signums)


def heed_signals() -> None:
    """Ignore none: a new program would ignore it, too. Python ignores SIGPIPE, and we ignore
    others."""
    for signum in signal.valid_signals():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Whatever our descendants leave behind becomes our child, to be reaped."""
    # The daemon may ignore it, and then children could not be reaped.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def program(module: str, function: str = "main") -> list[str]:
    """The argv that calls a function of a module of this CARMA, without importing `site`, which
    would double the time until a job starts."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); import {module} as m; m.{function}()"
    return [sys.executable, "-I", "-S", "-c", code]


class CannotStart(Exception):
    """The job's own fault, found before exec: the message and the hint."""


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def fork(run: Callable[[int], None]) -> tuple[int, int]:
    """Call `run` in a child; it returns only by raising. Returns the child's pid, and the pipe on
    which it says why it could not start: `run` may say more on it first."""
    report_in, report_out = os.pipe()
    pid = os.fork()
    if pid:
        os.close(report_out)
        os.set_blocking(report_in, False)
        return pid, report_in
    try:
        os.close(report_in)
        run(report_out)
    except CannotStart as error:
        write_all(report_out, "\n".join(error.args).encode())
    except BaseException as error:  # noqa: BLE001  (a forked child must never return)
        write_all(report_out, f"cannot start the program: {error!r}"[:REPORT_BYTES].encode())
    finally:
        os._exit(127)


def aside(run: Callable[[int], None], within_s: float, most: int) -> tuple[bytes, bool]:
    """Call `run` with a pipe in a child that nobody needs: it may wait for ever for a file server
    or for a process of a user's. Returns at most that much of what it wrote, and whether it ended
    within that time; if not, it is killed."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run(theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    deadline = time.monotonic() + within_s
    said = b""
    poller = select.poll()
    poller.register(ours, select.POLLIN)
    try:
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = os.read(ours, 1 << 16)
            if not data:
                os.waitpid(pid, 0)
                return said, True
            said = (said + data)[:most]
        os.kill(pid, signal.SIGKILL)
        return said, False
    finally:
        os.close(ours)


def become_user(launch: Launch) -> None:
    if os.geteuid() == 0 and launch.uid != 0:
        os.setgroups(launch.groups)
        os.setresgid(launch.gid, launch.gid, launch.gid)
        os.setresuid(launch.uid, launch.uid, launch.uid)


def become_job(launch: Launch) -> None:
    """Become its user, in its directory, with an empty standard input."""
    become_user(launch)
    os.umask(launch.umask)
    if launch.cpus:
        with contextlib.suppress(OSError):  # the daemon has none of these: any will do
            os.sched_setaffinity(0, launch.cpus)
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        raise CannotStart(
            f"cannot enter the working directory {readable(launch.cwd)}: {error.strerror}",
            "submit from a directory that exists and that you can access on this machine",
        ) from error
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)


def die_with_parent() -> None:
    """Be killed when our parent ends, from here on: call it after changing the user, which would
    undo it. A pipe that only the parent reads tells whether it had ended before."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit(rlimits: Mapping[str, int]) -> None:
    """Set these soft limits, as far as the hard ones allow."""
    for name, soft in rlimits.items():
        which = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY and not 0 <= soft <= hard:
            soft = hard
        with contextlib.suppress(OSError, ValueError):  # the kernel has a limit of its own
            resource.setrlimit(which, (soft, hard))


def readable(name: str) -> str:
    return os.fsencode(name[:200]).decode("utf-8", "replace")


def start_program(launch: Launch, report: int) -> None:
    """Become the user's program. Returns only by raising."""
    if launch.report_fd is not None:
        os.dup2(report, launch.report_fd)
        os.set_inheritable(launch.report_fd, True)
    heed_signals()
    block()
    limit(launch.rlimits)
    try:
        os.execvpe(launch.argv[0], [*launch.argv], launch.env)
    except OSError as error:
        # The latter, if the last of PATH is a file.
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        what = "command not found" if is_missing else error.strerror
        hint = HINTS.get(errno.ENOENT if is_missing else error.errno or 0, "")
        raise CannotStart(f"cannot run {readable(launch.argv[0])}: {what}", hint) from error
