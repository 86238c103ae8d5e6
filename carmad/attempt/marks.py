"""Reads a variable of processes' environments, where the kernel does not say whose they are: what a
user's own process left behind on a system without cgroups, and what another daemon (Docker's) runs
for a job.

A process can keep everybody who reads its environment waiting for ever. So a process of its own
does that (`main`), which nobody needs: it is killed if one process keeps it waiting, and another
one asks the others. The same holds for its command and its directory (`write_title`).

Part of the supervisor's program, so imports are few (see there).
"""
# ruff: noqa: PTH115

from __future__ import annotations

import os
import select
import sys

from carmad.attempt.proc import process_stat, read_file
from carmad.attempt.starting import program, write_all

WITHIN_S = 2.0  # to read the environment of one process, which takes some microseconds
START_WITHIN_S = 10.0
MOST_STUCK = 8  # processes that one search waits for
MOST_KNOWN = 4096
MOST_BYTES = 4096  # of a value, which is a path
SIGKILL = 9


class Marks:
    """The values of a variable, by process. Each process is asked once."""

    def __init__(self, variable: bytes) -> None:
        self._variable = variable
        self._known: dict[tuple[int, int], bytes] = {}

    def value(self, pid: int, start: int) -> bytes | None:
        """Its value as it was read; b"": it has none, or does not say. None: not asked yet."""
        return self._known.get((pid, start))

    def having(self, value: bytes, processes: dict[int, int]) -> dict[int, int]:
        """Those of these processes (pid and start time) that have this value."""
        self.ask(processes)
        return {pid: start for pid, start in processes.items() if self.value(pid, start) == value}

    def ask(self, processes: dict[int, int]) -> None:
        """Ask those that have not been asked. One that does not answer is named on standard
        error."""
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        left = [key for key in processes.items() if key not in self._known]
        for _ in range(MOST_STUCK):
            if left:
                left = self._ask_some(left)

    def _ask_some(self, processes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Ask these; returns those that come after one that does not answer."""
        answers, theirs = os.pipe()
        words = [os.fsdecode(self._variable), *(f"{pid}.{start}" for pid, start in processes)]
        argv = [*program("carmad.attempt.marks"), *words]
        try:
            reader = os.posix_spawn(
                argv[0], argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 1)], setsigmask=[]
            )
        except OSError:  # no process can be started now: they are asked the next time
            os.close(answers)
            return []
        finally:
            os.close(theirs)
        try:
            for at, key in enumerate(processes, 1):
                # How long it takes to start, or to get its turn, is nobody's fault.
                asking = _line(answers, START_WITHIN_S)
                value = _line(answers, WITHIN_S) if asking else b""
                self._known[key] = bytes.fromhex(value.decode())
                if not value:
                    sys.stderr.write(f"carma: the environment of process {key[0]} cannot be read\n")
                    return processes[at:]
            return []
        finally:
            os.close(answers)
            _end(reader)


def _line(fd: int, within_s: float) -> bytes:
    """A line with its end; b"" if there is none in that time after what came before."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1) if poller.poll(within_s * 1000) else b""
        if not byte:
            return b""
        line += byte
    return line


def _end(reader: int) -> None:
    """Kill the reader. If SIGKILL does not end it, it is reaped later, like any orphan."""
    os.kill(reader, SIGKILL)
    ended = os.pidfd_open(reader)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    if poller.poll(WITHIN_S * 1000):
        os.waitpid(reader, 0)
    os.close(ended)


def main() -> None:
    """For each process that is named in the arguments, as PID.START: write an empty line, read its
    environment, and write the variable's value, in hexadecimal digits."""
    variable = os.fsencode(sys.argv[1]) + b"="
    for word in sys.argv[2:]:
        os.write(1, b"\n")
        pid, start = map(int, word.split("."))
        value = b""
        try:
            for each in read_file(f"/proc/{pid}/environ").split(b"\0"):
                if each.startswith(variable):
                    value = each[len(variable) :][:MOST_BYTES]
        except OSError:
            pass  # it is gone, or not to be read
        stat = process_stat(pid)
        mine = value if stat is not None and stat[1] == start else b""
        os.write(1, mine.hex().encode() + b"\n")


def write_title() -> None:
    """Write the directory and the command of the process that is named in the arguments."""
    pid = int(sys.argv[1])
    directory = os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
    write_all(1, directory + b"\0" + read_file(f"/proc/{pid}/cmdline"))
