"""Trains models from a copy of the daemon's database: `python -m carmad.learning COPY DIRECTORY`.

Writes DIRECTORY/NAME.json for each model with enough data. Progress goes to standard output,
warnings to standard error. For the daemon it runs as a separate process: at low priority, with
limits on memory and time, and only while the other end of its standard input is open.
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
    _limit()
    # Imported only now, so that the limits apply to these imports, too.
    from carmad.learning.retraining import retrain
    from carmad.store.sql import SqlStore

    with closing(SqlStore.open(database)) as store:
        for said in retrain(store, directory, time.time()):
            print(said.text, file=sys.stderr if said.alarming else sys.stdout, flush=True)


def _limit() -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")  # to be killed before any job
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"  # the CPUs are for the jobs
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which kills the process
    signal.alarm(WITHIN_S)
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    os.read(0, 1)  # not sys.stdin: its lock would get in the way of a clean exit
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
