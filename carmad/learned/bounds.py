"""Limits on the processes and memory of a trial, including all that it starts.

If systemd has delegated carmad's cgroup to it (Delegate=yes, cgroup v2), each trial has its own
cgroup below it, and the kernel enforces the limits. Otherwise each process is limited individually,
and the attendant regularly checks their total (`broken`).

Part of the attendant's program, so imports are few (see `supervisor`).
"""
# pathlib and contextlib would take longer to import than all of this:
# ruff: noqa: PTH102, PTH106, PTH116, PTH208, SIM105

from __future__ import annotations

import os
import resource

from carmad.attempt.cgroup import oom_kills, own_cgroup
from carmad.attempt.proc import descendants, read_file, tell_kernel, write_file
from carmad.attempt.starting import aside

MOST_TASKS = 512  # processes and threads
LOOK_S = 0.25  # between two checks, without a cgroup
SHARES_WITHIN_S = 2.0
CPU_WEIGHT = 10  # the daemon and jobs have 100
MIB = 1 << 20
SERVICE, LEAF, TRIAL = "/carmad.service", "carmad", "trial-"
_in_use: set[str] = set()  # cgroups of current trials


def home() -> str | None:
    """carmad's own cgroup, prepared for limited cgroups below it; None if that is impossible.

    A cgroup with controlled children must not have processes itself: the daemon moves to a leaf.
    """
    own = own_cgroup()
    if own is None or not own.endswith(SERVICE) or not _delegated(own):
        return None
    try:
        os.mkdir(f"{own}/{LEAF}")
        for pid in read_file(f"{own}/cgroup.procs").split():
            write_file(f"{own}/{LEAF}/cgroup.procs", pid)
        write_file(f"{own}/cgroup.subtree_control", b"+pids +memory")
    except OSError:
        return None
    tell_kernel(f"{own}/cgroup.subtree_control", b"+cpu")
    return own


def _delegated(cgroup: str) -> bool:
    """Whether systemd has delegated it to us, and will not undo what we do there."""
    for name in ("trusted.delegate", "user.delegate"):
        try:
            return os.getxattr(cgroup, name) == b"1"
        except OSError:
            pass
    return False


def make(home: str, name: str, memory: int) -> str | None:
    """Create a trial's cgroup. None if that fails: then the trial is limited without one."""
    for left in os.listdir(home):
        if left.startswith(TRIAL) and f"{home}/{left}" not in _in_use:
            _drop(f"{home}/{left}")  # fails if there are still processes in it
    cgroup = f"{home}/{TRIAL}{name}"
    _in_use.add(cgroup)  # its process has not entered it yet
    try:
        os.mkdir(cgroup)
        write_file(f"{cgroup}/pids.max", b"%d" % MOST_TASKS)
        write_file(f"{cgroup}/memory.max", b"%d" % memory)
    except OSError:
        _in_use.discard(cgroup)
        _drop(cgroup)
        return None
    tell_kernel(f"{cgroup}/memory.swap.max", b"0")
    tell_kernel(f"{cgroup}/memory.oom.group", b"1")
    tell_kernel(f"{cgroup}/cpu.weight", b"%d" % CPU_WEIGHT)
    return cgroup


def remove(cgroup: str) -> None:
    """Kill what is left in it, and remove it. If processes remain, a later trial removes it."""
    tell_kernel(f"{cgroup}/cgroup.kill", b"1")
    _in_use.discard(cgroup)
    _drop(cgroup)


def _drop(cgroup: str) -> None:
    try:
        os.rmdir(cgroup)
    except OSError:
        pass


def enter(cgroup: str | None, memory: int, uid: int) -> None:
    """Limit the calling process, while it still has the privileges for that."""
    if cgroup is not None:
        write_file(f"{cgroup}/cgroup.procs", b"0")
        return
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_NPROC, _tasks(uid) + MOST_TASKS)  # the kernel counts all the user's


def broken(cgroup: str | None, memory: int) -> str:
    """Which limit the descendants of this process have exceeded, in words; "" if none."""
    if cgroup is not None:
        return _too_much(memory) if oom_kills(cgroup) else ""
    found = descendants()
    if len(found) > MOST_TASKS:  # RLIMIT_NPROC does not apply to root
        return f"it started more than {MOST_TASKS} processes"
    if sum(map(_resident, found)) > memory and _shares(list(found)) > memory:
        return _too_much(memory)
    return ""


def _too_much(memory: int) -> str:
    return f"it used more than {memory // MIB} MiB of memory, with all that it started"


def _limit(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(which, (most, most))


def _tasks(uid: int) -> int:
    """How many tasks a user has: a process's task directory has a link for each thread."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = os.stat(f"/proc/{name}/task")
            except OSError:
                continue
            if status.st_uid == uid:
                count += status.st_nlink - 2
    return count


def _resident(pid: int) -> int:
    """Its memory in bytes, including all shared memory: cheap to read."""
    try:
        return int(read_file(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
    except (OSError, IndexError):  # it has ended
        return 0


def _shares(pids: list[int]) -> float:
    """Their memory in bytes, shared memory counted once: expensive to read, and a process can keep
    whoever reads it waiting. Then it has no right to more."""

    def read(out: int) -> None:
        os.write(out, b"%d" % sum(map(_share, pids)))

    said, ended = aside(read, SHARES_WITHIN_S, 32)
    return int(said) if ended and said else float("inf")


def _share(pid: int) -> int:
    try:
        for line in read_file(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
