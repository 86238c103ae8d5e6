"""Reads a variable of processes' environments, where the kernel does not say whose they are: what a
user's own process left behind on a system without cgroups, and what another daemon (Docker's) runs
for a job.

A process can keep everybody who reads its environment waiting for ever. So a process of its own
does that (`main`), which nobody needs: it is killed if one process keeps it waiting, and another
one asks the others. The same holds for its command and its directory (`write_title`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from carmad.attempt.proc import process_stat, read_file
from carmad.attempt.starting import program, write_all
from carmad.children import hear

WITHIN_S = 5.0  # for a Python to start; to read an environment takes some microseconds
MOST_STUCK = 4  # processes that one search waits for
MOST_KNOWN = 4096
MOST_BYTES = 4096  # of a value, which is a path


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
        words = [os.fsdecode(self._variable), *(f"{pid}.{start}" for pid, start in processes)]
        argv = [*program("carmad.attempt.marks"), *words]
        try:
            said = hear(subprocess.Popen(argv, env={}, stdout=subprocess.PIPE), WITHIN_S)
        except subprocess.TimeoutExpired as error:
            said = error.output or b""
        except OSError:  # no process can be started now: they are asked the next time
            return []
        *answers, asked = said.split(b"\n")
        for key, answer in zip(processes, answers, strict=False):
            self._known[key] = bytes.fromhex(answer[len(ASKED) :].decode())
        if asked != ASKED:  # all have answered, or the reader has not had its turn
            return []
        stuck = processes[len(answers)]
        self._known[stuck] = b""
        sys.stderr.write(f"carma: the environment of process {stuck[0]} cannot be read\n")
        return processes[len(answers) + 1 :]


ASKED = b"?"


def main() -> None:
    """For each process that is named in the arguments, as PID.START: write ASKED, read its
    environment, and write the variable's value, in hexadecimal digits, and a line's end."""
    variable = os.fsencode(sys.argv[1]) + b"="
    for word in sys.argv[2:]:
        os.write(1, ASKED)
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
    directory = Path(f"/proc/{pid}/cwd").readlink()
    write_all(1, bytes(directory) + b"\0" + read_file(f"/proc/{pid}/cmdline"))
