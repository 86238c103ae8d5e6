"""A job's processes: signals, ends and reaps them. They are all descendants of this one, except
those that the job's owner started and that are followed, and those that another daemon (Docker's)
started for the job with the job's mark.

Part of the supervisor's program, so imports are few (see there).
"""
# pathlib and contextlib would cost more to import than the supervisor takes to start a job:
# ruff: noqa: PTH116, PTH208, PTH211, SIM105

from __future__ import annotations

import os
import time

LEFTOVER_GRACE_S = 5.0  # for processes that outlive the job's main process
CLEARED_WITHIN_S = 10.0  # what a container's engine has to remove, once all in it is killed
STRANGERS_WITHIN_S = 10.0  # of killing what another daemon may start again and again
SIGHUP, SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 1, 9, 15, 18, 19  # `signal` is imported only later
UNKNOWN = -1  # the status of a process that ended unseen
LOOK_S = 0.1  # how often to look for processes that are not our children


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


def descendants(others: dict[int, int] | None = None) -> dict[int, int]:
    """Every descendant of ours, and `others` with theirs: pid and start time. As a subreaper, we
    inherit orphans, too."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_stat(int(name))
            if found is not None:
                children.setdefault(found[0], []).append((int(name), found[1]))
    below = dict(others or {})
    queue = [os.getpid(), *below]
    while queue:
        for pid, start in children.get(queue.pop(), ()):
            if pid not in below:
                below[pid] = start
                queue.append(pid)
    return below


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


def marked(uid: int, mark: bytes) -> dict[int, int]:
    """The user's processes with this variable in their environment: pid and start time."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                stat = process_stat(int(name))
                if stat is not None and mark in read_file(f"/proc/{name}/environ").split(b"\0"):
                    found[int(name)] = stat[1]
        except OSError:
            pass  # gone, or not to be read
    return found


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


def handles(pid: int, signum: int, how: bytes = b"SigCgt:") -> bool:
    """Whether it catches that signal; with `how` SigIgn, whether it ignores it."""
    try:
        for line in read_file(f"/proc/{pid}/status").splitlines():
            if line.startswith(how):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except OSError:
        pass
    return False


def contained_pid(pid: int) -> int | None:
    """Its pid in the pid namespace below ours that it is in; None if that is our own."""
    try:
        status = read_file(f"/proc/{pid}/status")
    except OSError:
        return None
    pids = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return int(pids[-1]) if len(pids) > 1 else None


def contained(processes: dict[int, int]) -> dict[int, int]:
    """Those in a container. What the job has handed to another scheduler (`sbatch`, `at`) has the
    job's variables, too, but is not the job's."""
    return {pid: start for pid, start in processes.items() if contained_pid(pid) is not None}


def joined(pid: int, start: int) -> str:
    """The name of the link that marks this process as followed."""
    return f"joined-{pid}-{start}"


class Tree:
    """The job's main process and every descendant, whatever session or parent it chose.

    `uid`, `mark`: also the user's processes with this variable, once any process is followed; at
    the end, at least those in containers.
    `contained`: the program is in a container, whose engine must clear it away after a SIGKILL.
    """

    def __init__(
        self,
        main: int,
        cgroup: str | None,
        uid: int = -1,
        mark: bytes = b"",
        contained: bool = False,
    ) -> None:
        self.main = main
        self.status: int | None = None  # of the main process, as wait() gives it, or UNKNOWN
        self.main_ended_boot_s: float | None = None
        self.stopped = False
        self.cause = ""  # why it was stopped, as given by the daemon
        self.interrupted = False
        self._contained = contained
        self._emptied = False  # the container, by us
        self.cgroup = cgroup
        self._uid = uid
        self._mark = mark
        self._followed: dict[int, int] = {}  # processes that we did not start: pid and start time
        self._strangers = False  # another daemon runs a container for the job
        self._deadline: float | None = None  # monotonic; SIGKILL from then on
        self._pause_s = 0.02

    def follow(self, pid: int, start: int) -> None:
        """This process and its descendants, which we did not start, belong to the job."""
        for at, its in list(self._followed.items()):
            if at != self.main and not running(at, its):
                del self._followed[at]
        self._followed[pid] = start
        if self.cgroup is not None and running(pid, start):
            for each in descendants({pid: start}):
                tell_kernel(f"{self.cgroup}/cgroup.procs", b"%d" % each)

    def everyone(self) -> dict[int, int]:
        """All live processes of the job: pid and start time."""
        if self._followed:
            known = {pid: start for pid, start in self._followed.items() if running(pid, start)}
            return descendants(known | marked(self._uid, self._mark))
        return descendants(contained(marked(self._uid, self._mark)) if self._strangers else {})

    def _addressed(self) -> dict[int, int]:
        """Those of all its processes that its signals are for: all, but in a container only the
        program's. Its init would pass them on, so that the program had them twice; and the engine's
        would leave the container half made or half removed. Without a program, its main ones."""
        everyone = self.everyone()
        if not self._contained:
            return everyone
        program = {pid: start for pid, start in everyone.items() if (contained_pid(pid) or 1) > 1}
        return program or {
            pid: start
            for pid, start in everyone.items()
            if (process_stat(pid) or (0, 0))[0] == os.getpid()
        }

    def main_ended(self) -> None:
        """The main process, which we did not start, has ended."""
        self.status = end_of(self.main, self._followed[self.main])
        self.main_ended_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def reap(self) -> bool:
        """Reap ended processes. True when none is left alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._followed and self._mark and not self._strangers:
                    self._strangers = bool(contained(marked(self._uid, self._mark)))
                return not (self._followed or self._strangers) or self._others_ended()
            if pid == 0:
                if self.status is not None:
                    self.end(LEFTOVER_GRACE_S)
                return False
            if pid == self.main:
                self.status = status
                self.main_ended_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def _others_ended(self) -> bool:
        """Whether the main process and those that were not our children have all ended, or cannot
        be ended: another daemon starts its container again."""
        if self.status is None:
            return False
        self.end(LEFTOVER_GRACE_S)
        return not self.everyone() or (self._strangers and self._killed_for(STRANGERS_WITHIN_S))

    def _killed_for(self, seconds: float) -> bool:
        return self._deadline is not None and time.monotonic() - self._deadline > seconds

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
            elif verb == b"follow":
                pid, start = map(int, value.split())
                self.follow(pid, start)
                os.symlink("-", joined(pid, start))  # even a full disk has room for it
        except (ValueError, OSError):
            pass  # whoever wants it followed is told that it is not

    def signal(self, signum: int) -> None:
        """Signal the processes that catch it; if none does, all.

        A shell that runs a job script does not catch SIGUSR2 and would die of it, and so would the
        job.
        """
        if not 0 < signum <= 64:
            return
        everyone = self._addressed()
        chosen = [pid for pid in everyone if handles(pid, signum)] or list(everyone)
        for pid in chosen:
            send(pid, everyone[pid], signum)

    def end(self, grace_s: float) -> None:
        """SIGTERM all, SIGKILL them after `grace_s`. A repeated call can only shorten the grace."""
        if self._deadline is None:
            for pid, start in self._addressed().items():
                send(pid, start, SIGTERM)
                send(pid, start, SIGCONT)  # a stopped process would never see its SIGTERM
            self._deadline = time.monotonic() + grace_s
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def press(self) -> float | None:
        """Kill what has outlived its grace. Returns after how many seconds to call this again."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left > 0 and (self._followed or self._strangers):
            self._hang_up()
            return min(left, LOOK_S)
        if left > 0 and self._contained and self.status is not None:
            self._dismiss()
            return min(left, LOOK_S)
        if left > 0:
            return min(left, 3600.0)
        if self._contained and not self._emptied:
            self._emptied = True
            self._deadline = time.monotonic() + CLEARED_WITHIN_S
            self._kill_container()
            return self._pause_s
        self._kill()
        self._pause_s = min(1.0, 2 * self._pause_s)
        return self._pause_s

    def _hang_up(self) -> None:
        """SIGHUP to shells, once only they are left: at a terminal they ignore SIGTERM."""
        left = {pid: start for pid, start in self.everyone().items() if running(pid, start)}
        if all(handles(pid, SIGTERM, b"SigIgn:") for pid in left):
            for pid, start in left.items():
                send(pid, start, SIGHUP)

    def _kill_container(self) -> None:
        """SIGKILL what is in the container, and nothing of its engine."""
        for pid, start in self.everyone().items():
            if contained_pid(pid) is not None:
                send(pid, start, SIGKILL)

    def _dismiss(self) -> None:
        """SIGTERM what a container's engine would keep for the user's next one."""
        for pid, start in self._addressed().items():
            if contained_pid(pid) is None:
                send(pid, start, SIGTERM)

    def _kill(self) -> None:
        if self.cgroup is not None:
            tell_kernel(f"{self.cgroup}/cgroup.kill", b"1")
        # Freeze before killing: a process that forks faster than we read /proc would escape.
        frozen: dict[int, int] = {}
        for _ in range(10):
            fresh = {pid: start for pid, start in self.everyone().items() if pid not in frozen}
            if not fresh:
                break
            for pid, start in fresh.items():
                send(pid, start, SIGSTOP)
            frozen |= fresh
        for pid, start in frozen.items():
            send(pid, start, SIGKILL)
