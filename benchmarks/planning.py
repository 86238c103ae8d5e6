"""One tick of the core, `Scheduler.handle(Sampled)`, with 2,048 jobs in line, for each policy.

It is all that the core does in a tick: windows, meters, the view, the policy's plan and its check.
"""

from __future__ import annotations

import statistics
import time
from importlib.metadata import entry_points

from benchmarks import server
from benchmarks.rows import Row, of_runs
from carmad.core.scheduler import Scheduler
from carmad.core.types import Job

GROUP = "planning, 2,048 queued"
QUEUED = 2048
TICKS = 20
FILLED = 7
RUNS = 3
TOO_MUCH_MIB = 35_000  # fits no GPU that somebody else is on


def measure() -> list[Row]:
    names = sorted(point.name for point in entry_points(group="carma.policies"))
    rows = []
    for backfill in (0, 16):
        for name in names:
            for what, tick in (("all wait", blocked), ("8 placed", placing)):
                runs = [tick(name, backfill) * 1000 for _ in range(RUNS)]
                label = f"{name}, backfill {backfill}, {what}"
                rows.append(of_runs(GROUP, label, runs, "ms", bound=3))
    return rows


def blocked(policy: str, backfill: int) -> float:
    """Eight busy GPUs, and a line of jobs that fit none of them: a median tick's seconds."""
    running = server.residents(1)
    core = _core(policy, backfill, running, server.line(100, QUEUED, TOO_MUCH_MIB))
    return statistics.median(
        _tick(core, server.BEGUN + 100 + n, running, placed=0) for n in range(TICKS)
    )


def placing(policy: str, backfill: int) -> float:
    """Eight GPUs that have just become free: the tick in which the first eight jobs start."""
    taken = []
    for _ in range(FILLED):
        core = _core(policy, backfill, [], server.line(100, QUEUED))
        taken.append(_tick(core, server.BEGUN + 100, [], placed=8))
    return statistics.median(taken)


def _core(policy: str, backfill: int, running: list[Job], line: list[Job]) -> Scheduler:
    """With its windows full, and nothing planned yet."""
    core = server.scheduler(policy, backfill)
    core.restore(running)
    for second in range(60):
        core.handle(server.sampled(server.BEGUN + 40 + second, running))
    core.restore([*running, *line])
    return core


def _tick(core: Scheduler, at: float, running: list[Job], placed: int) -> float:
    event = server.sampled(at, running)
    begun = time.perf_counter()
    step = core.handle(event)
    taken = time.perf_counter() - begun
    assert len(step.actions) == placed, f"{len(step.actions)} started, not {placed}"
    return taken
