"""The process that runs a program for `trial`, and makes sure that nothing of it is left.

Standard library only, and little of it, as in `supervisor`. Its arguments are the file descriptor
for the program's answer, its number inside the program, the limits in seconds and in bytes of
memory, and the cgroup, if any (`bounds`). Its other file descriptors are

- 0  what to run (`starting.Launch`)
- 1  the program's stdout and stderr
- 2  the outcome, written at the end: `code N`, `signal N`, `late`, `beyond` and the limit that was
     exceeded, or `error` and why the program could not be started. When its reader is gone, the
     program is ended at once.
"""
# ruff: noqa: SIM105 - contextlib would cost more to import than all of this

from __future__ import annotations

import os
import select
import sys
import time

from carmad.attempt.proc import read_file, tell_kernel
from carmad.attempt.process_tree import SIGKILL, Tree
from carmad.attempt.starting import (
    REPORT_BYTES,
    SIGCHLD,
    Launch,
    adopt_orphans,
    become_job,
    block,
    fork,
    libc,
    start_program,
    write_all,
)
from carmad.learned import bounds

GRACE_S = 0.5  # for processes that the program leaves behind, to clean up
NICE = 10
CLONE_NEWNS, MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 0x20000, 2, 4, 0x4000, 0x80000


def run_program(launch: Launch, report: int, memory: int, cgroup: str | None) -> None:
    """In the child. Returns only by raising."""
    os.setsid()
    bounds.enter(cgroup, memory, launch.uid)
    own_shared_memory(memory)
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    tell_kernel("/proc/self/oom_score_adj", b"1000")  # killed before any job
    become_job(launch)
    os.dup2(1, 2)
    start_program(launch, report)


def own_shared_memory(memory: int) -> None:
    """Mount an empty /dev/shm that disappears with the trial's last process. Only root can do that.

    As a slave, the namespace receives mounts but does not propagate its own: automounters still
    work.
    """
    if (
        os.geteuid() == 0
        and libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0
    ):
        size = b"mode=1777,size=%d" % memory
        libc.mount(b"carma", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, size)


def main() -> None:
    answer, known_as, within_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    memory, cgroup = int(sys.argv[4]), sys.argv[5] or None
    deadline = time.monotonic() + within_s
    if answer != known_as:
        os.dup2(answer, known_as)
        os.close(answer)
    block(SIGCHLD)  # `sigtimedwait` receives it
    adopt_orphans()
    launch = Launch(read_file("/proc/self/fd/0"))
    tree = Tree(0, cgroup)
    tree.main, report = fork(lambda report: run_program(launch, report, memory, cgroup))
    os.close(known_as)
    os.close(1)
    ended, beyond = _await_end(tree.main, deadline, memory, cgroup)
    _end(tree, 0.0 if beyond else GRACE_S)
    try:
        error = os.read(report, REPORT_BYTES)
    except BlockingIOError:
        error = b""
    assert tree.status is not None
    if error:
        said = b"error " + error
    elif beyond:
        said = b"beyond " + beyond.encode()
    elif not ended:
        said = b"late"
    elif os.WIFSIGNALED(tree.status):
        said = b"signal %d" % os.WTERMSIG(tree.status)
    else:
        said = b"code %d" % os.WEXITSTATUS(tree.status)
    try:
        write_all(2, said)
    except BrokenPipeError:
        pass


def _await_end(pid: int, deadline: float, memory: int, cgroup: str | None) -> tuple[bool, str]:
    """Whether it ended in time, and which limit it exceeded, if any. Also returns when nobody waits
    for the outcome any more."""
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(2, 0)  # an error there: its other end was closed
    look_s = bounds.LOOK_S if cgroup is None else float("inf")
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        found = poller.poll(min(left_s, look_s) * 1000)
        beyond = bounds.broken(cgroup, memory)
        if found or beyond or left_s <= look_s:
            return any(fd == ended for fd, _ in found), beyond


def _end(tree: Tree, grace_s: float) -> None:
    """Kill the program at once, as its SIGTERM handler may want to save a checkpoint, and the rest
    after a grace period, as those processes may have to remove files."""
    from signal import sigtimedwait

    os.kill(tree.main, SIGKILL)  # our child, not reaped yet, so the pid has not been reused
    tree.end(grace_s)
    while not tree.reap():
        sigtimedwait([SIGCHLD], tree.press() or 0.0)
