"""How long the cancel of a large array takes, and how long a submission waits meanwhile."""

from __future__ import annotations

import threading
import time

from benchmarks.daemon.carmad import SLEEPER, Daemon
from benchmarks.harness.rows import Row, of_runs

GROUP = "cancel of 5,000 waiting tasks"
TASKS = 5_000
RUNS = 3
PAUSE_S = 0.01  # between two submissions


def measure() -> list[Row]:
    took: list[float] = []
    longest: list[float] = []
    with Daemon() as daemon:
        daemon.run(SLEEPER, gpus=8, exclusive=True)
        for _ in range(RUNS):
            array = daemon.run(SLEEPER, memory_mib=1000, array={"indices": list(range(TASKS))})
            daemon.await_queued(array + TASKS - 1)
            stop = threading.Event()
            waits: list[float] = []
            others = threading.Thread(target=_submit, args=(daemon, stop, waits))
            others.start()
            begun = time.perf_counter()
            daemon.post("/v1/cancel", {"select": str(array)})
            took.append(time.perf_counter() - begun)
            stop.set()
            others.join()
            longest.append(max(waits) * 1000)
    return [
        of_runs(GROUP, "until it is answered", took, "s", bound=0.3),
        of_runs(GROUP, "longest submission meanwhile", longest, "ms", bound=50),
    ]


def _submit(daemon: Daemon, stop: threading.Event, waits: list[float]) -> None:
    """One after the other; how long each took is added to `waits`, in seconds."""
    while not stop.is_set():
        begun = time.perf_counter()
        daemon.run(SLEEPER, memory_mib=1000)
        waits.append(time.perf_counter() - begun)
        time.sleep(PAUSE_S)
