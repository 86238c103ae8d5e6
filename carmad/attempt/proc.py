"""What the kernel says about a process without waiting for it, and signals for exactly that one.

Only files of /proc that the process itself cannot keep anybody from reading: `stat`, `status`,
`cgroup`, `children` and `fdinfo`. Its environment, arguments, maps and links take locks that it can
hold for ever, in a page fault on a dead file server or on a file system of its user's (see
`marks`).
"""
# Each job's end looks at all processes; with pathlib, that alone takes 6 ms of a job's 16:
# ruff: noqa: PTH116, PTH208

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from io import FileIO
from signal import SIGKILL, pidfd_send_signal

UNKNOWN = -1  # the status of a process that ended unseen


def read_file(path: str) -> bytes:
    with FileIO(path) as file:
        return file.readall()


def write_file(path: str, data: bytes) -> None:
    """Write to an existing file."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def tell_kernel(path: str, data: bytes) -> None:
    """Write to a kernel file, ignoring errors: everything also works without cgroups."""
    with contextlib.suppress(OSError):
        write_file(path, data)


def _stat(pid: int) -> list[bytes]:
    """The fields from the state on. Raises OSError."""
    # The command's name is in parentheses and may contain any character, even `)`.
    return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def process_stat(pid: int) -> tuple[int, int] | None:
    """(parent pid, start time in ticks since boot), or None if there is no such process."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return int(fields[1]), int(fields[19])


def running(pid: int, start: int) -> bool:
    """False also for a zombie, and for another process with that pid."""
    try:
        fields = _stat(pid)
    except OSError:
        return False
    return int(fields[19]) == start and fields[0] not in (b"Z", b"X")


def end_of(pid: int, start: int) -> int:
    """The status of an ended process whose parent has not waited for it yet, as wait() gives it;
    UNKNOWN if that is over, or the kernel does not tell us."""
    try:
        fields = _stat(pid)
        told = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return UNKNOWN
    return int(fields[49]) if told and int(fields[19]) == start else UNKNOWN


def _pids() -> list[int]:
    """Of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes(
    uid: int | None = None, which: Callable[[int], bool] = lambda _: True
) -> dict[int, int]:
    """All processes, or a user's, or those of them for which `which` is true: pid and start
    time."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):  # it is gone
            is_meant = (uid is None or os.stat(f"/proc/{pid}").st_uid == uid) and which(pid)
            if is_meant and (stat := process_stat(pid)):
                found[pid] = stat[1]
    return found


def descendants(others: dict[int, int] | None = None) -> dict[int, int]:
    """Every descendant of ours, and `others` with theirs: pid and start time. As a subreaper, we
    inherit orphans, too."""
    found = with_descendants({**(others or {}), os.getpid(): 0})
    del found[os.getpid()]
    return found


def children() -> dict[int, list[tuple[int, int]]]:
    """Of all processes: the pids and start times of their children."""
    found: dict[int, list[tuple[int, int]]] = {}
    for pid in _pids():
        if stat := process_stat(pid):
            found.setdefault(stat[0], []).append((pid, stat[1]))
    return found


def with_descendants(
    roots: dict[int, int], tree: dict[int, list[tuple[int, int]]] | None = None
) -> dict[int, int]:
    """These processes and all their descendants: pid and start time. `tree`: the `children`, if
    they are known."""
    tree = children() if tree is None else tree
    below = dict(roots)
    queue = [*below]
    while queue:
        for pid, start in tree.get(queue.pop(), ()):
            if pid not in below:
                below[pid] = start
                queue.append(pid)
    return below


def cpu_ticks(pid: int) -> int:
    """The processor time that it and its ended children have taken; 0 if it is gone."""
    try:
        return sum(map(int, _stat(pid)[11:15]))
    except OSError:
        return 0


def main_process(supervisor: int) -> int:
    """Its first child's pid; 0 if it has none."""
    try:
        return int(read_file(f"/proc/{supervisor}/task/{supervisor}/children").split()[0])
    except (OSError, IndexError):
        return 0


def log_sizes(pid: int) -> tuple[int, ...]:
    """The positions of its stdout and stderr: how far these files have grown, by whichever process
    has inherited them. Empty if that is not to be had."""
    try:
        infos = [read_file(f"/proc/{pid}/fdinfo/{fd}").split(None, 2) for fd in (1, 2)]
    except OSError:
        return ()
    return tuple(int(info[1]) for info in infos)


def send(pid: int, start: int, signum: int) -> bool:
    """Signal this process, but not another one that has reused its pid. False if it is gone, or may
    not be signalled, as a setuid program."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = process_stat(pid)
        if found is None or found[1] != start:
            return False
        pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def uids(pid: int) -> set[int]:
    """Its real, effective, saved and file system user ids; none if there is no such process. The
    owner of its directory would be root also for a process that has made itself undumpable."""
    return set(map(int, _status(pid, "Uid")))


def _status(pid: int, field: str) -> list[bytes]:
    """The words of this line of its `status`; none if it is gone."""
    try:
        status = read_file(f"/proc/{pid}/status")
    except OSError:
        return []
    return status.partition(b"\n%s:" % field.encode())[2].partition(b"\n")[0].split()


def own_environment(pid: int) -> dict[str, str]:
    """Of a process of our own user's, for tools that look for what they have started. Empty for all
    others: they could keep us waiting."""
    if uids(pid) != {os.geteuid()}:
        return {}
    try:
        words = read_file(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in words if word)
    return {name: value for name, _, value in pairs}


def unkillable(pid: int) -> bool:
    """Whether it has been killed and is not gone, because it waits in the kernel (for a file server
    that is dead, for instance), or because its parent does not reap it. It runs no more."""
    state, pending = _status(pid, "State")[:1], _status(pid, "SigPnd")
    if not state:
        return True
    return state[0] in (b"Z", b"X") or (state[0] == b"D" and _has(pending, SIGKILL))


def handles(pid: int, signum: int, how: str = "SigCgt") -> bool:
    """Whether it catches that signal; with `how` SigIgn, whether it ignores it."""
    return _has(_status(pid, how), signum)


def _has(mask: list[bytes], signum: int) -> bool:
    return bool(mask) and bool(int(mask[0], 16) >> (signum - 1) & 1)


def pid_in_container(pid: int) -> int | None:
    """Its pid in the pid namespace below ours that it is in; None if that is our own."""
    pids = _status(pid, "NSpid")
    return int(pids[-1]) if len(pids) > 1 else None


def in_containers(uid: int) -> dict[int, int]:
    """A user's processes in containers: pid and start time."""
    return processes(uid, lambda pid: pid_in_container(pid) is not None)
