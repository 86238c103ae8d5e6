"""Trains models from a copy of the daemon's database: `python -m carmad.learning COPY DIRECTORY`.

Writes DIRECTORY/NAME.json for each model that there is data enough for. What was done is said on
standard output; what somebody should look at, on standard error. For the daemon it runs apart: of
low priority, with bounds on its memory and its time, and not longer than somebody holds the other
end of its standard input.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

NICE = 15
MOST_BYTES = 8 << 30  # of address space
WITHIN_S = 1800


def main(argv: Sequence[str]) -> None:
    database, directory = map(Path, argv)
    _bound()
    # Only now: what these import is to be bounded, too.
    from carmad.learning.retraining import retrain
    from carmad.store.sql import SqlStore

    with closing(SqlStore.open(database)) as store:
        for said in retrain(store, directory, time.time()):
            print(said.text, file=sys.stderr if said.alarming else sys.stdout, flush=True)


def _bound() -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than a job
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"  # the jobs' CPUs are not ours
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it kills
    signal.alarm(WITHIN_S)
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    os.read(0, 1)  # not sys.stdin: its lock would be in the way of a good end
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
