"""A job's processes, which are all descendants of this one: signals, ends and reaps them.

Part of the supervisor's program, so imports are few (see there).
"""
# pathlib and contextlib would cost more to import than the supervisor takes to start a job:
# ruff: noqa: PTH102, PTH110, PTH119, PTH208, SIM105

from __future__ import annotations

import os
import time

LEFTOVER_GRACE_S = 5.0  # for processes that outlive the job's main process
SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 9, 15, 18, 19  # `signal` is imported only later


def read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def write_file(path: str, data: bytes) -> None:
    """Write to an existing file."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def tell_kernel(path: str, data: bytes) -> None:
    """Write to a kernel file, ignoring errors: everything also works without cgroups."""
    try:
        write_file(path, data)
    except OSError:
        pass


def process_stat(pid: int) -> tuple[int, int] | None:
    """(parent pid, start time in ticks since boot), or None if there is no such process."""
    try:
        # The command's name is in parentheses and may contain any character, even `)`.
        fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19])


def own_cgroup() -> str | None:
    """The path of our cgroup (v2)."""
    for line in read_file("/proc/self/cgroup").decode().splitlines():
        if line.startswith("0::"):
            for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                if os.path.exists(f"{mount}{line[3:]}/cgroup.procs"):
                    return mount + line[3:]
    return None


def job_cgroup(unit: str | None) -> str | None:
    """A cgroup for the job alone, below our unit's. None if we have no unit of our own.

    Killing the unit's own cgroup would kill us too, before we could record how the job ended.
    """
    if unit is None or not os.path.basename(unit).startswith("carma-job-"):
        return None
    try:
        os.mkdir(f"{unit}/job", 0o755)
    except FileExistsError:
        pass
    except OSError:
        return None
    return f"{unit}/job"


def limited_cgroup(path: str, limits: dict[str, bytes]) -> str | None:
    """A new cgroup for the job alone; `limits`: contents of its files. None if there can be none:
    then the job runs without."""
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError:
        return None
    for name, value in limits.items():
        tell_kernel(f"{path}/{name}", value)
    return path


def memory_events(cgroup: str | None) -> dict[bytes, int] | None:
    """What has happened in this cgroup and those below it, by the kernel's name for it. None:
    nobody counts."""
    if cgroup is None:
        return None
    try:
        words = read_file(f"{cgroup}/memory.events").split()
    except OSError:
        return None
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)}


def oom_kills(cgroup: str | None) -> int | None:
    """How often the kernel's OOM killer has struck in this cgroup and those below it."""
    events = memory_events(cgroup)
    return events.get(b"oom_kill") if events else None


def descendants() -> dict[int, int]:
    """Every descendant of ours: pid and start time. As a subreaper, we inherit orphans, too."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_stat(int(name))
            if found is not None:
                children.setdefault(found[0], []).append((int(name), found[1]))
    below: dict[int, int] = {}
    queue = [os.getpid()]
    while queue:
        for pid, start in children.get(queue.pop(), ()):
            if pid not in below:
                below[pid] = start
                queue.append(pid)
    return below


def send(pid: int, start: int, signum: int) -> None:
    """Signal this process, but not another one that has reused its pid."""
    from signal import pidfd_send_signal

    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = process_stat(pid)
        if found is not None and found[1] == start:
            pidfd_send_signal(fd, signum)
    except OSError:
        pass  # gone, or a setuid program that we may not signal
    finally:
        os.close(fd)


def catches(pid: int, signum: int) -> bool:
    try:
        for line in read_file(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except OSError:
        pass
    return False


class Tree:
    """The job's main process and every descendant, whatever session or parent it chose."""

    def __init__(self, main: int, cgroup: str | None) -> None:
        self.main = main
        self.status: int | None = None  # of the main process, as wait() gives it
        self.main_ended_boot_s: float | None = None
        self.stopped = False
        self.cause = ""  # why it was stopped, as given by the daemon
        self.interrupted = False
        self.cgroup = cgroup
        self._deadline: float | None = None  # monotonic; SIGKILL from then on
        self._pause_s = 0.02

    def reap(self) -> bool:
        """Reap ended processes. True when none is left alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                if self.status is not None:
                    self.end(LEFTOVER_GRACE_S)
                return False
            if pid == self.main:
                self.status = status
                self.main_ended_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def obey(self, line: bytes) -> None:
        """Carry out one line of `control`; an incomplete or unknown one is ignored."""
        verb, _, value = line.partition(b" ")
        try:
            if verb == b"because" and self.status is None:
                self.cause = self.cause or value.decode("ascii", "replace")
            elif verb == b"stop":
                self.stopped = self.stopped or self.status is None
                self.end(float(value))
            elif verb == b"signal":
                self.signal(int(value))
        except ValueError:
            pass

    def signal(self, signum: int) -> None:
        """Signal the processes that catch it; if none does, all.

        A shell that runs a job script does not catch SIGUSR2 and would die of it, and so would the
        job.
        """
        if not 0 < signum <= 64:
            return
        everyone = descendants()
        chosen = [pid for pid in everyone if catches(pid, signum)] or list(everyone)
        for pid in chosen:
            send(pid, everyone[pid], signum)

    def end(self, grace_s: float) -> None:
        """SIGTERM all, SIGKILL them after `grace_s`. A repeated call can only shorten the grace."""
        if self._deadline is None:
            for pid, start in descendants().items():
                send(pid, start, SIGTERM)
                send(pid, start, SIGCONT)  # a stopped process would never see its SIGTERM
            self._deadline = time.monotonic() + grace_s
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def press(self) -> float | None:
        """Kill what has outlived its grace. Returns after how many seconds to call this again."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left > 0:
            return min(left, 3600.0)
        self._kill()
        self._pause_s = min(1.0, 2 * self._pause_s)
        return self._pause_s

    def _kill(self) -> None:
        if self.cgroup is not None:
            tell_kernel(f"{self.cgroup}/cgroup.kill", b"1")
        # Freeze before killing: a process that forks faster than we read /proc would escape.
        frozen: dict[int, int] = {}
        for _ in range(10):
            fresh = {pid: start for pid, start in descendants().items() if pid not in frozen}
            if not fresh:
                break
            for pid, start in fresh.items():
                send(pid, start, SIGSTOP)
            frozen |= fresh
        for pid, start in frozen.items():
            send(pid, start, SIGKILL)
