"""What a daemon takes while nothing happens: processor and memory.

Three daemons idle side by side: without jobs, with two that sleep, and with a long past.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import history
from benchmarks.daemon import SLEEPER, Daemon
from benchmarks.rows import Row

GROUP = "idle daemon"
PAST = 20_000
SETTLE_S = 5.0
WATCH_S = 25.0


def measure() -> list[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="carma-bench-")))
        history.write(directory, PAST)
        daemons = {
            "no jobs": stack.enter_context(Daemon()),
            "2 jobs asleep": stack.enter_context(Daemon()),
            f"{PAST:,} ended jobs": stack.enter_context(Daemon(directory)),
        }
        for _ in range(2):
            daemons["2 jobs asleep"].run(SLEEPER)
        time.sleep(SETTLE_S)
        before = {name: daemon.cpu_s() for name, daemon in daemons.items()}
        begun = time.monotonic()
        time.sleep(WATCH_S)
        watched_s = time.monotonic() - begun
        rows = []
        for name, daemon in daemons.items():
            share = (daemon.cpu_s() - before[name]) / watched_s * 100
            note = f"over {watched_s:.0f} s"
            rows.append(Row(GROUP, f"{name}: of one core", share, "%", bound=1, note=note))
        for name, daemon in daemons.items():
            note = f"PSS {daemon.pss_mb():.0f} MB"
            rows.append(Row(GROUP, f"{name}: RSS", daemon.rss_mb(), "MB", bound=120, note=note))
    return rows
