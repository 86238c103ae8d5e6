"""The process that runs a program for a trial, within limits, and makes sure that nothing of it is
left.

Standard library only, as in `supervisor`. Its arguments are the file descriptor
for the program's answer, as which the program gets it, the limits in seconds and in bytes of
memory, and the cgroup, if any. Its other file descriptors are

- 0  what to run (`starting.Launch`)
- 1  the program's stdout and stderr
- 2  the outcome, written at the end: fields of `Trial`, as JSON. When its reader is gone, the
     program is ended at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import sys
import time
from pathlib import Path
from signal import SIGCHLD, SIGKILL, sigtimedwait

from carmad.attempt.cgroup import oom_kills, own_cgroup
from carmad.attempt.proc import descendants, processes, read_file, tell_kernel, write_file
from carmad.attempt.process_tree import Tree, how_it_ended
from carmad.attempt.starting import (
    REPORT_BYTES,
    Launch,
    adopt_orphans,
    aside,
    become_job,
    block,
    fork,
    libc,
    start_program,
    write_all,
)

# -- limits on the processes and memory of a trial, including all that it starts. If systemd has
# delegated carmad's cgroup to it (Delegate=yes, cgroup v2), each trial has its own cgroup below it,
# and the kernel enforces the limits. Otherwise each process is limited individually, and the
# attendant regularly checks their total (`broken_limit`)

MOST_TASKS = 512  # processes and threads
LOOK_S = 0.25  # between two checks, without a cgroup
SHARES_WITHIN_S = 2.0
CPU_WEIGHT = 10  # the daemon and jobs have 100
MIB = 1 << 20
SERVICE, LEAF, TRIAL = "/carmad.service", "carmad", "trial-"
_in_use: set[str] = set()  # cgroups of current trials


def trials_cgroup() -> str | None:
    """carmad's own cgroup, prepared for limited cgroups below it; None if that is impossible.

    A cgroup with controlled children must not have processes itself: the daemon moves to a leaf.
    """
    own = own_cgroup()
    if own is None or not own.endswith(SERVICE) or not _is_delegated(own):
        return None
    try:
        Path(own, LEAF).mkdir()
        for pid in read_file(f"{own}/cgroup.procs").split():
            write_file(f"{own}/{LEAF}/cgroup.procs", pid)
        write_file(f"{own}/cgroup.subtree_control", b"+pids +memory")
    except OSError:
        return None
    tell_kernel(f"{own}/cgroup.subtree_control", b"+cpu")
    return own


def _is_delegated(cgroup: str) -> bool:
    """Whether systemd has delegated it to us, and will not undo what we do there."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(cgroup, name) == b"1"
    return False


def make_cgroup(home: str, name: str, memory: int) -> str | None:
    """Create a trial's cgroup. None if that fails: then the trial is limited without one."""
    for left in map(str, Path(home).glob(f"{TRIAL}*")):
        if left not in _in_use:
            _drop(left)  # fails if there are still processes in it
    cgroup = f"{home}/{TRIAL}{name}"
    _in_use.add(cgroup)  # its process has not entered it yet
    try:
        Path(cgroup).mkdir()
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


def remove_cgroup(cgroup: str) -> None:
    """Kill what is left in it, and remove it. If processes remain, a later trial removes it."""
    tell_kernel(f"{cgroup}/cgroup.kill", b"1")
    _in_use.discard(cgroup)
    _drop(cgroup)


def _drop(cgroup: str) -> None:
    with contextlib.suppress(OSError):
        Path(cgroup).rmdir()


def enter_bounds(cgroup: str | None, memory: int) -> None:
    """Limit the calling process, while it still has the privileges for that."""
    if cgroup is not None:
        write_file(f"{cgroup}/cgroup.procs", b"0")
    else:
        lower(resource.RLIMIT_DATA, memory)


def task_limit(uid: int) -> int:
    """For RLIMIT_NPROC: the kernel counts all the user's."""
    return _tasks(uid) + MOST_TASKS


def broken_limit(cgroup: str | None, memory: int) -> str:
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


def lower(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(which, (most, most))


def _tasks(uid: int) -> int:
    """How many tasks a user has: a process's task directory has a link for each thread."""
    count = 0
    for pid in processes(uid):
        with contextlib.suppress(OSError):  # it has ended
            count += Path(f"/proc/{pid}/task").stat().st_nlink - 2
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
    with contextlib.suppress(OSError):
        for line in read_file(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    return 0


GRACE_S = 0.5  # for processes that the program leaves behind, to clean up
NICE = 10
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 2, 4, 0x4000, 0x80000


def run_program(launch: Launch, report: int) -> None:
    """In the child, within its bounds. Returns only by raising."""
    os.setsid()
    os.nice(NICE)
    tell_kernel("/proc/self/oom_score_adj", b"1000")  # killed before any job
    become_job(launch)
    os.dup2(1, 2)
    start_program(launch, report)


def mount_shared_memory(memory: int) -> bool:
    """Mount an empty /dev/shm that disappears with the trial's last process, as do queues,
    semaphores and shared memory that have no file. Only root can do that.

    As a slave, the namespace receives mounts but does not propagate its own: automounters still
    work.
    """
    size = b"mode=1777,size=%d" % memory
    if os.geteuid() == 0:
        libc.unshare(CLONE_NEWIPC)  # which the unit of an earlier release forbids
    return bool(
        os.geteuid() == 0
        and libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0
        and libc.mount(b"carma", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, size) == 0
    )


def main() -> None:
    given, answer = int(sys.argv[1]), int(sys.argv[2])
    if given != answer:
        os.dup2(given, answer)
        os.close(given)
    within_s, memory = float(sys.argv[3]), int(sys.argv[4])
    cgroup = sys.argv[5] or None
    deadline = time.monotonic() + within_s
    block(SIGCHLD)  # `sigtimedwait` receives it
    adopt_orphans()
    launch = Launch.loads(read_file("/proc/self/fd/0"))

    def run(report: int) -> None:
        enter_bounds(cgroup, memory)
        if cgroup is None:
            lower(resource.RLIMIT_NPROC, task_limit(launch.uid))
        mount_shared_memory(memory)
        run_program(launch, report)

    tree = Tree(0, cgroup)
    tree.main, report = fork(run)
    os.close(answer)
    os.close(1)
    ended, beyond = _await_end(tree.main, deadline, memory, cgroup)
    end(tree, 0.0 if beyond else GRACE_S)
    try:
        error = os.read(report, REPORT_BYTES)
    except BlockingIOError:
        error = b""
    assert tree.status is not None
    said: dict[str, object]
    if error:
        said = {"error": error.decode("utf-8", "replace").partition("\n")[0]}
    elif beyond or not ended:
        said = {"beyond": beyond, "timed_out": not beyond}
    else:
        code, killed_by = how_it_ended(tree.status)
        said = {"code": code, "signal": killed_by}
    with contextlib.suppress(BrokenPipeError):
        write_all(2, json.dumps(said).encode())


def _await_end(pid: int, deadline: float, memory: int, cgroup: str | None) -> tuple[bool, str]:
    """Whether it ended in time, and which limit it exceeded, if any. Also returns when nobody waits
    for the outcome any more."""
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(2, 0)  # an error there: its other end was closed
    look_s = LOOK_S if cgroup is None else float("inf")
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        found = poller.poll(min(left_s, look_s) * 1000)
        beyond = broken_limit(cgroup, memory)
        if found or beyond or left_s <= look_s:
            return any(fd == ended for fd, _ in found), beyond


def end(tree: Tree, grace_s: float) -> None:
    """Kill the program at once, as its SIGTERM handler may want to save a checkpoint, and the rest
    after a grace period, as those processes may have to remove files."""
    os.kill(tree.main, SIGKILL)  # our child, not reaped yet, so the pid has not been reused
    tree.end(grace_s)
    while not tree.reap():
        sigtimedwait([SIGCHLD], tree.press() or 0.0)
