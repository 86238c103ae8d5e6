"""The process that keeps a warm tracer (`estimators.tracer.warm`), and is the attendant of each of
its trials.

What `attendant` does for one program, it does for one order after the other: the limits hold, and
all that a script has started is killed at the end; only the tracer itself stays. It ends with its
owner, after some time without an order, or when the machine runs out of memory; and if anything is
not as it should be, as a trial can be repeated without it. Its arguments are the limit in bytes of
memory, and the cgroup, if any. Its other file descriptors are

- 0  what the tracer is (`starting.Launch`)
- 3  the socket of the owner. An order is a packet: by when it must have ended (monotonic), with the
     tracer's order, and the pipes for the output, the answer and the outcome as in `attendant`.
     Another outcome is `cold`: the tracer cannot serve this order.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys
import time

from carmad.attempt.cgroup import members
from carmad.attempt.proc import descendants, process_stat, read_file, running, send
from carmad.attempt.process_tree import SIGCONT, SIGKILL, SIGTERM, Tree, kill_all
from carmad.attempt.starting import SIGCHLD, Launch, adopt_orphans, block, fork, write_all
from carmad.estimates.attendant import (
    GRACE_S,
    LOOK_S,
    broken_limit,
    end,
    enter_bounds,
    lower,
    mount_shared_memory,
    run_program,
    task_limit,
)

# As in `attendant`:
# ruff: noqa: PTH108, PTH208

OWNER, PACKET_BYTES = 3, 64
READY, ORDER, REST, COLD = b"ready", b"order", b"rest", b"cold"  # as in `estimators.tracer.warm`
LATE = b"late"
IDLE_S = 600.0
IDLE_LOOK_S = 10.0
SPARE_SHARE = 0.05  # of the machine's memory: with less available, an idle tracer is too much
CLEARED_WITHIN_S = 2.0
PAUSE_S = 0.005


def main() -> None:
    memory, cgroup = int(sys.argv[1]), sys.argv[2] or None
    block(SIGCHLD)
    adopt_orphans()
    launch = Launch(read_file("/proc/self/fd/0"))
    owner = socket.socket(fileno=OWNER)
    has_own = mount_shared_memory(memory)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def run(report: int) -> None:
        enter_bounds(cgroup, memory)
        if cgroup is None:
            lower(resource.RLIMIT_NPROC, task_limit(launch.uid))
        os.dup2(theirs.fileno(), OWNER)
        run_program(launch, report)

    pid, _ = fork(run)
    theirs.close()
    keeper = Keeper(pid, ours, memory, cgroup, launch.uid, has_own)
    try:
        keeper.serve(owner)
    finally:
        keeper.end()


class Keeper:
    def __init__(
        self,
        pid: int,
        tracer: socket.socket,
        memory: int,
        cgroup: str | None,
        uid: int,
        has_own: bool,
    ) -> None:
        """`pid`, `tracer`: the tracer's process, and the socket to it. `has_own`: a /dev/shm."""
        self._has_own = has_own
        self._pid = pid
        self._tracer = tracer
        self._ended = os.pidfd_open(pid)
        self._memory, self._cgroup, self._uid = memory, cgroup, uid
        self._is_new = True
        self._is_over = False

    def serve(self, owner: socket.socket) -> None:
        """Returns when the tracer should be ended."""
        idle_since = time.monotonic()
        poller = select.poll()
        poller.register(owner, select.POLLIN)
        poller.register(self._ended, select.POLLIN)
        while True:
            found = [fd for fd, _ in poller.poll(IDLE_LOOK_S * 1000)]
            if owner.fileno() in found:
                packet, fds, _, _ = socket.recv_fds(owner, PACKET_BYTES, 4)
                if not packet or not self._serve(float(packet), *fds):
                    return
                idle_since = time.monotonic()
            elif found or time.monotonic() - idle_since > IDLE_S or _is_short_of_memory():
                return

    def _serve(self, deadline: float, order: int, output: int, answer: int, verdict: int) -> bool:
        """One order. False if the tracer should get no other one."""
        said = self._try(deadline, (order, output, answer), verdict)
        name, _, status = said.partition(b" ")
        is_well = name in (b"ended", LATE) and self._clear(name == LATE)
        if name == b"ended" and os.WIFSIGNALED(int(status)):
            said = b"signal %d" % os.WTERMSIG(int(status))
        elif name == b"ended":
            said = b"code %d" % os.WEXITSTATUS(int(status))
        if not is_well:
            self.end()
        try:
            write_all(verdict, said)
            if is_well:
                self._tracer.send(REST)
        except BrokenPipeError:
            pass
        os.close(verdict)
        return is_well

    def end(self) -> None:
        """The tracer, and all that is left of its scripts."""
        if not self._is_over:
            self._is_over = True
            end(Tree(self._pid, self._cgroup), 0.0)

    def _try(self, deadline: float, fds: tuple[int, int, int], verdict: int) -> bytes:
        """What the tracer says in the end; or that it is late, or beyond a limit."""
        try:
            said = self._hear(deadline, verdict) if self._is_new else READY
            if said != READY:
                return said
            self._is_new = False
            self._limit_tasks()
            socket.send_fds(self._tracer, [ORDER], fds)
        except OSError:
            return COLD
        finally:
            for fd in fds:
                os.close(fd)
        return self._hear(deadline, verdict)

    def _hear(self, deadline: float, verdict: int) -> bytes:
        poller = select.poll()
        poller.register(self._tracer, select.POLLIN)
        poller.register(self._ended, select.POLLIN)
        poller.register(verdict, 0)  # an error there: nobody waits for it any more
        look_s = LOOK_S if self._cgroup is None else float("inf")
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            found = [fd for fd, _ in poller.poll(min(left_s, look_s) * 1000)]
            if beyond := broken_limit(self._cgroup, self._memory):
                return b"beyond " + beyond.encode()
            if self._tracer.fileno() in found:
                try:
                    return self._tracer.recv(PACKET_BYTES) or COLD
                except OSError:
                    return COLD
            if self._ended in found:
                return COLD
            if found or left_s <= 0:
                return LATE

    def _limit_tasks(self) -> None:
        """Anew for each trial, as the user's other processes count; the tracer's child keeps to it
        for good."""
        if self._cgroup is not None:
            return
        most, hard = task_limit(self._uid), resource.prlimit(self._pid, resource.RLIMIT_NPROC)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(self._pid, resource.RLIMIT_NPROC, (soft, hard))

    def _clear(self, is_late: bool) -> bool:
        """End all but the tracer, a script that still runs at once. False if that fails."""
        for pid, start in self._others().items():
            stat = process_stat(pid)
            if stat is not None and stat[0] == self._pid:
                send(pid, start, SIGKILL)
            else:
                send(pid, start, SIGTERM)
                send(pid, start, SIGCONT)
        deadline = time.monotonic() + GRACE_S
        while self._others():
            self._reap()
            if time.monotonic() > deadline + CLEARED_WITHIN_S:
                return False
            if time.monotonic() > deadline:
                kill_all(self._others)
            time.sleep(PAUSE_S)
        self._reap()
        if self._has_own:
            try:
                for name in os.listdir("/dev/shm"):  # only files: a trial can make nothing else
                    os.unlink(f"/dev/shm/{name}")
            except OSError:
                return False
        if not is_late:
            return True
        heard = select.select([self._tracer], [], [], CLEARED_WITHIN_S)[0]
        return bool(heard) and self._tracer.recv(PACKET_BYTES).startswith(b"ended")

    def _others(self) -> dict[int, int]:
        found = descendants() | (members(self._cgroup) if self._cgroup else {})
        return {
            pid: start for pid, start in found.items() if pid != self._pid and running(pid, start)
        }

    def _reap(self) -> None:
        """But not the tracer: `end` does."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == self._pid:
                return
            os.waitpid(found.si_pid, 0)


def _is_short_of_memory() -> bool:
    try:
        lines = read_file("/proc/meminfo").splitlines()
    except OSError:
        return False
    kib = {line.partition(b":")[0]: int(line.split()[1]) for line in lines}
    return kib.get(b"MemAvailable", kib[b"MemTotal"]) < SPARE_SHARE * kib[b"MemTotal"]
