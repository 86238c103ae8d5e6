"""Kills what a killed supervisor left running where there is no cgroup, in a process of its own, as
finding it can take long: `main ATTEMPT_DIR UID` returns when none is left.
"""

from __future__ import annotations

import os
import sys
import time

from carmad.attempt.marks import Marks
from carmad.attempt.proc import processes, send
from carmad.attempt.process_tree import SIGKILL, VARIABLE

LOOK_S = 0.05


def main() -> None:
    mark, uid = os.fsencode(sys.argv[1]), int(sys.argv[2])
    marks = Marks(VARIABLE)
    while found := marks.having(mark, processes(uid)):
        for pid, start in found.items():
            send(pid, start, SIGKILL)
        time.sleep(LOOK_S)
