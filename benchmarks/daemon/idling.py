"""How much processor time and memory a daemon takes while nothing happens.

Three daemons idle side by side: without jobs, with two that sleep, and with a long past.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from benchmarks.daemon import server
from benchmarks.daemon.carmad import SLEEPER, Daemon
from benchmarks.harness import Row

GROUP = "idle daemon"
PAST = 20_000
USED = 40
SETTLE_S = 30.0  # then the sliding windows are as full as they get
WINDOWS = 3
WINDOW_S = 10.0


def measure() -> list[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="carma-bench-")))
        server.write_ended(directory, PAST)
        daemons = {
            "no jobs": stack.enter_context(Daemon()),
            "2 jobs asleep": stack.enter_context(Daemon()),
            f"{PAST:,} ended jobs": stack.enter_context(Daemon(directory)),
        }
        for _ in range(2):
            daemons["2 jobs asleep"].run(SLEEPER)
        time.sleep(SETTLE_S)
        readings = [_cpu(daemons)]
        for _ in range(WINDOWS):
            time.sleep(WINDOW_S)
            readings.append(_cpu(daemons))
        rows = [_share(name, [reading[name] for reading in readings]) for name in daemons]
        rows += [_memory(name, daemon) for name, daemon in daemons.items()]
        _use(daemons["no jobs"])
        return [*rows, _memory(f"no jobs, after {USED} and every listing", daemons["no jobs"])]


def _cpu(daemons: dict[str, Daemon]) -> dict[str, tuple[float, float]]:
    return {name: (time.monotonic(), daemon.cpu_s()) for name, daemon in daemons.items()}


def _share(name: str, readings: list[tuple[float, float]]) -> Row:
    """Over all windows together: what is done every half minute is in only one of them."""

    def percent(before: tuple[float, float], after: tuple[float, float]) -> float:
        return (after[1] - before[1]) / (after[0] - before[0]) * 100

    windows = [percent(*pair) for pair in pairwise(readings)]
    whole = percent(readings[0], readings[-1])
    note = f"over {readings[-1][0] - readings[0][0]:.0f} s"
    spread = (min(windows), max(windows))
    return Row(GROUP, f"{name}: of one core", whole, "%", bound=1, spread=spread, note=note)


def _memory(name: str, daemon: Daemon) -> Row:
    note = f"PSS {daemon.pss_mb():.0f} MB"
    return Row(GROUP, f"{name}: RSS", daemon.rss_mb(), "MB", bound=120, note=note)


def _use(daemon: Daemon) -> None:
    """Jobs come and go, and everything is asked for once."""
    daemon.run(["/bin/true"], array={"indices": list(range(USED))}, stdout="/dev/null")
    daemon.await_idle(within_s=60)
    for path in ("jobs", "history", "gpus", "stats", "health", "openapi.json", "jobs/1/why"):
        daemon.get(f"/v1/{path}")
