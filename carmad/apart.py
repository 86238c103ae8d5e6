"""A process apart from the daemon, for work that takes long: `run` starts it, and it calls `limit`
first. It has a low priority and limits, and ends with the daemon."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

from carmad.paths import python

NICE = 15
MOST_BYTES = 8 << 30  # of address space
WITHIN_S = 1800
LOOK_S = 0.2  # between two checks whether the daemon is stopping


def run(module: str, *words: str, stopping: threading.Event) -> tuple[int, list[str], list[str]]:
    """`python -m MODULE WORD…`: its exit code, and the lines that it said and warned of. It is
    killed when `stopping` is set."""
    held_by_it, held = os.pipe()  # it runs as long as we hold our end
    process = subprocess.Popen(
        [*python(module), *words],
        stdin=held_by_it,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        text=True,
        errors="replace",
        start_new_session=True,
    )
    os.close(held_by_it)
    with process, open(held, "wb"):  # noqa: PTH123 - a descriptor
        while not stopping.is_set():
            try:
                said, alarms = process.communicate(timeout=LOOK_S)
                return process.returncode, said.splitlines(), alarms.splitlines()
            except subprocess.TimeoutExpired:
                continue
        process.kill()
        return process.wait(), [], []


def limit() -> None:
    """What this process may take, and that it ends when the other end of its standard input is
    closed."""
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
