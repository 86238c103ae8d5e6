"""A job's processes: signals, ends and reaps them. They are all those in the job's cgroup and all
descendants of this process, except those that the job's owner started and that are followed, and
those that another daemon (Docker's) started for the job with the job's mark.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGKILL, SIGSTOP, SIGTERM

from carmad.attempt import cgroup as cgroups
from carmad.attempt.marks import Marks
from carmad.attempt.proc import (
    UNKNOWN,
    descendants,
    end_of,
    handles,
    in_containers,
    pid_in_container,
    process_stat,
    processes,
    running,
    send,
    tell_kernel,
    unkillable,
    write_file,
)

LEFTOVER_GRACE_S = 5.0  # for processes that outlive the job's main process
# Helpers, such as a logger's that still sends what it has, end by themselves within this time.
HELPERS_END_S = 1.0
CLEARED_WITHIN_S = 10.0  # what a container's engine has to remove, once all in it is killed
KILLED_WITHIN_S = 10.0  # what is still there then waits in the kernel, or is started again
VARIABLE = b"CARMA_ATTEMPT_DIR"  # `environment.ATTEMPT_VARIABLE`
SWEEP_EVERY_S = 0.05
GONE, LEFT = 0, 75  # the exit codes of `sweep`
LOOK_S = 0.1  # how often to look for processes that are not our children


TIME_LIMIT = "time_limit"  # `Cause.TIME_LIMIT`
DONE = "-"  # an answer: what was asked for was done


def join_link(pid: int, start: int) -> str:
    """The name of the link that marks this process as followed."""
    return f"joined-{pid}-{start}"


def answer_link(name: str) -> str:
    """The name of the link whose target answers the request of that name."""
    return f"answer-{name}"


def answer(link: str, why_not: str) -> None:
    """Even a full disk has room for a link."""
    Path(link).symlink_to(why_not or DONE)


class Tree:
    """The job's main process, its cgroup, and every descendant, whatever session or parent it
    chose.

    `uid`, `mark`: also the user's processes with this value of VARIABLE, where a process is
    followed and there is no cgroup; at the end, at least those in containers.
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
        self.until = float("inf")  # in seconds since boot: the end of its time
        self.interrupted = False
        self._contained = contained
        self._emptied = False  # the container, by us
        self.cgroup = cgroup
        self._uid = uid
        self._mark = mark
        self._marks = Marks(VARIABLE)
        self._followed: dict[int, int] = {}  # processes that we did not start: pid and start time
        self._strangers = False  # another daemon runs a container for the job
        self.left = 0  # processes that could not be killed
        # Processes of the main one's session that outlived it; not those that became daemons.
        self.background = 0
        self._deadline: float | None = None  # monotonic; SIGKILL from then on
        self._helpers_until: float | None = None  # monotonic; once the main process has ended
        self._pause_s = 0.02

    def follow(self, pid: int, start: int) -> None:
        """This process and its descendants, which we did not start, belong to the job."""
        for at, its in list(self._followed.items()):
            if at != self.main and not running(at, its):
                del self._followed[at]
        self._followed[pid] = start
        if self.cgroup is not None and running(pid, start):
            for each, its in descendants({pid: start}).items():
                cgroups.move(each, its, self.cgroup)

    def everyone(self) -> dict[int, int]:
        """All live processes of the job: pid and start time."""
        found = {pid: start for pid, start in self._followed.items() if running(pid, start)}
        if self._mark and self._followed and self.cgroup is None:
            found |= self.find_marked()
        elif self._strangers:
            found |= self._containers()
        return self._own(found)

    def find_marked(self) -> dict[int, int]:
        """The user's processes with the mark; no zombie, which its parent may reap last."""
        return self._marks.having(self._mark, _running_processes(self._uid))

    def _own(self, others: dict[int, int] | None = None) -> dict[int, int]:
        """Those that the kernel says are the job's, and these `others`."""
        found = descendants(others)
        return found | cgroups.members(self.cgroup) if self.cgroup else found

    def _containers(self) -> dict[int, int]:
        """What another daemon runs in containers for the job. What the job has handed to another
        scheduler (`sbatch`, `at`) has the job's variables, too, but is not the job's."""
        found = in_containers(self._uid) if self._mark else {}
        return self._marks.having(self._mark, found) if found else {}

    def _recipients(self) -> dict[int, int]:
        """Those of all its processes that its signals are for: all, but in a container only the
        program's. Its init would pass them on, so that the program had them twice; and the engine's
        would leave the container half made or half removed. Without a program, the main process:
        conmon is a child of ours, too, before there is a program. Once the main process has ended,
        our other children."""
        everyone = self.everyone()
        if not self._contained:
            return everyone
        program = {
            pid: start for pid, start in everyone.items() if (pid_in_container(pid) or 1) > 1
        }
        if program:
            return program
        if self.status is None:
            return {pid: start for pid, start in everyone.items() if pid == self.main}
        return {
            pid: start
            for pid, start in everyone.items()
            if (process_stat(pid) or (0, 0))[0] == os.getpid()
        }

    def note_main_end(self) -> None:
        """The main process, which we did not start, has ended."""
        self.status = end_of(self.main, self._followed[self.main])
        self.main_ended_boot_s = boottime()

    def reap(self) -> bool:
        """Reap ended processes. True when none is left alive, or what is left cannot be killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._have_others_ended()
            if pid == 0:
                if self.status is not None:
                    self._end_rest()
                return self._gives_up()
            if pid == self.main:
                self.status = status
                self.main_ended_boot_s = boottime()

    def _have_others_ended(self) -> bool:
        """Whether the main process and those that are not our children have all ended."""
        if self.status is None:
            return False
        if self._followed or self._strangers:
            left = bool(self.everyone())
        else:
            # Without a child, we have no descendant either: orphans become our children.
            self._strangers = bool(self._containers())
            left = self._strangers or bool(self.cgroup and cgroups.members(self.cgroup))
        if not left:
            return True
        self._end_rest()
        return self._gives_up()

    def _end_rest(self) -> None:
        """End what outlives the main process, but for helpers that end by themselves."""
        if self._deadline is None and not (self._followed or self._strangers or self._contained):
            now = time.monotonic()
            if self._helpers_until is None:
                self._helpers_until = now + HELPERS_END_S
            if now < self._helpers_until:
                return
            alive = (pid for pid, start in self.everyone().items() if running(pid, start))
            self.background = sum(_session(pid) == self.main for pid in alive)
        self.end(LEFTOVER_GRACE_S)

    def _gives_up(self) -> bool:
        """Whether killing has not helped for a while: what is left waits in the kernel and does
        nothing more, or another daemon starts its container again."""
        if self._deadline is None or time.monotonic() - self._deadline < KILLED_WITHIN_S:
            return False
        own = self._own()
        if not all(unkillable(pid) for pid in own):
            return False
        self.left = len(own)
        if self.status is None:
            self.status = SIGKILL
        return True

    def obey(self, line: bytes) -> None:
        """Carry out one line of `control`; an incomplete or unknown one is ignored."""
        with contextlib.suppress(ValueError, OSError):  # whoever wants an answer gets none
            match line.decode("ascii", "replace").split(" "):
                case ["because", cause] if self.status is None:
                    self.cause = self.cause or cause
                case ["stop", grace_s]:
                    self.stopped = self.stopped or self.status is None
                    self.end(float(grace_s))
                case ["signal", signum]:
                    self.signal(int(signum))
                case ["until", boot_s]:
                    self.until = float(boot_s)
                case ["follow", pid, start]:
                    self.follow(int(pid), int(start))
                    answer(join_link(int(pid), int(start)), "")
                case ["freeze", frozen, name]:
                    answer(answer_link(name), self._freeze(int(frozen)))
                case ["allow", most, name]:
                    answer(answer_link(name), self._allow(int(most)))

    def _freeze(self, frozen: int) -> str:
        """Let no process of the job run (1), or all again (0). Returns why not, or ""."""
        if frozen and (self._deadline is not None or self.status is not None):
            return "it is ending"
        return self._set("cgroup.freeze", frozen)

    def _allow(self, most: int) -> str:
        """Let it have that many bytes of the host's memory. Returns why not, or ""."""
        if self.cgroup is not None and cgroups.static_bytes(self.cgroup) > most:
            return "it uses more than that now"  # the kernel would end it
        return self._set("memory.max", most)

    def _set(self, name: str, value: int) -> str:
        if self.cgroup is None:
            return "it has no cgroup"
        try:
            write_file(f"{self.cgroup}/{name}", b"%d" % value)
        except OSError as error:
            return f"the kernel refuses: {error.strerror}"
        return ""

    def signal(self, signum: int) -> None:
        """Signal the processes that catch it; if none does, all.

        A shell that runs a job script does not catch SIGUSR2 and would die of it, and so would the
        job.
        """
        if not 0 < signum <= 64:
            return
        everyone = self._recipients()
        chosen = [pid for pid in everyone if handles(pid, signum)] or list(everyone)
        for pid in chosen:
            send(pid, everyone[pid], signum)

    def end(self, grace_s: float) -> None:
        """SIGTERM all, SIGKILL them after `grace_s`. A repeated call can only shorten the grace."""
        if self._deadline is None:
            for pid, start in self._recipients().items():
                send(pid, start, SIGTERM)
                send(pid, start, SIGCONT)  # a stopped process would never see its SIGTERM
            if self.cgroup is not None:
                tell_kernel(f"{self.cgroup}/cgroup.freeze", b"0")  # nor would a frozen one
            self._deadline = time.monotonic() + grace_s
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def keep_time(self, grace_s: float) -> None:
        """End the job when its time is over: the daemon has not, as it hangs, or does not run."""
        if self._deadline is None and self.status is None and boottime() >= self.until:
            self.stopped, self.cause = True, self.cause or TIME_LIMIT
            self.end(grace_s)

    def press(self) -> float | None:
        """Kill what has outlived its grace. Returns after how many seconds to call this again."""
        if self._deadline is None:
            if self._helpers_until is not None:
                return max(0.0, self._helpers_until - time.monotonic())
            left = self.until - boottime()
            return min(max(0.0, left), 3600.0) if left < float("inf") else None
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
        if all(handles(pid, SIGTERM, "SigIgn") for pid in left):
            for pid, start in left.items():
                send(pid, start, SIGHUP)

    def _kill_container(self) -> None:
        """SIGKILL what is in the container, and nothing of its engine."""
        for pid, start in self.everyone().items():
            if pid_in_container(pid) is not None:
                send(pid, start, SIGKILL)

    def _dismiss(self) -> None:
        """SIGTERM what a container's engine would keep for the user's next one."""
        for pid, start in self._recipients().items():
            if pid_in_container(pid) is None:
                send(pid, start, SIGTERM)

    def _kill(self) -> None:
        if self.cgroup is not None:
            tell_kernel(f"{self.cgroup}/cgroup.kill", b"1")
        kill_all(self.everyone)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def how_it_ended(status: int) -> tuple[int | None, int | None]:
    """The exit code, or the signal; neither if that is not known."""
    if status == UNKNOWN:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has just ended
        return 0


def kill_all(find: Callable[[], Mapping[int, int]]) -> None:
    """SIGKILL the processes that `find` gives, pids with their starts; frozen before that, as one
    that forks faster than we read /proc would escape."""
    frozen: dict[int, int] = {}
    for _ in range(10):
        fresh = {pid: start for pid, start in find().items() if pid not in frozen}
        if not fresh:
            break
        for pid, start in fresh.items():
            send(pid, start, SIGSTOP)
        frozen |= fresh
    for pid, start in frozen.items():
        send(pid, start, SIGKILL)


def sweep() -> None:
    """Kill what a killed supervisor left running where there is no cgroup: `ATTEMPT_DIR UID`. Exits
    with GONE if nothing is left, and with LEFT if what is left cannot be killed."""
    mark, uid = os.fsencode(sys.argv[1]), int(sys.argv[2])
    marks, began = Marks(VARIABLE), time.monotonic()
    while found := marks.having(mark, _running_processes(uid)):
        for pid, start in found.items():
            send(pid, start, SIGKILL)
        if time.monotonic() - began > KILLED_WITHIN_S and all(map(unkillable, found)):
            break
        time.sleep(SWEEP_EVERY_S)
    sys.exit(LEFT if found else GONE)


def _running_processes(uid: int) -> dict[int, int]:
    """The user's processes but for zombies, which their parents may never reap."""
    return {pid: start for pid, start in processes(uid).items() if running(pid, start)}
