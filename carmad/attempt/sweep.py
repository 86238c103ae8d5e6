"""Kills what a killed supervisor left running where there is no cgroup, in a process of its own, as
finding it can take long: `main ATTEMPT_DIR UID` returns when none is left, or exits with LEFT when
what is left cannot be killed.
"""

from __future__ import annotations

import os
import sys
import time

from carmad.attempt.marks import Marks
from carmad.attempt.proc import processes, running, send, unkillable
from carmad.attempt.process_tree import KILLED_WITHIN_S, SIGKILL, VARIABLE

LOOK_S = 0.05
LEFT = 3


def main() -> None:
    mark, uid = os.fsencode(sys.argv[1]), int(sys.argv[2])
    marks, began = Marks(VARIABLE), time.monotonic()
    while found := marks.having(mark, _running(uid)):
        for pid, start in found.items():
            send(pid, start, SIGKILL)
        if time.monotonic() - began > KILLED_WITHIN_S and all(map(unkillable, found)):
            sys.exit(LEFT)
        time.sleep(LOOK_S)


def _running(uid: int) -> dict[int, int]:
    """The user's processes but for zombies, which their parents may never reap."""
    return {pid: start for pid, start in processes(uid).items() if running(pid, start)}
