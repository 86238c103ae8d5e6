"""One tick of the core, `Scheduler.handle(Sampled)`, with 2,048 jobs in line, for each policy.

It is all that the core does in a tick: windows, meters, the view, the policy's plan and its check.
Judged is the processor time of all threads, as the guard that policies run behind has one of its
own; waiting for a core that others use is no part of planning. The wall clock is told beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import NamedTuple

from benchmarks.daemon import server
from benchmarks.harness.rows import Row, of_runs
from carmad.core.messages import Launch, Sampled
from carmad.core.scheduler import Scheduler
from carmad.core.types import Estimate, Job
from carmad.testing import a_spec

GROUP = "planning, 2,048 queued"
QUEUED = 2048
TICKS, RESTORED = 20, 7  # of which the median is taken, per run
RUNS = 3
TOO_MUCH_MIB = 35_000  # fits no GPU that somebody else is on


class Tick(NamedTuple):
    cpu_ms: float
    wall_ms: float


def measure() -> list[Row]:
    names = sorted(point.name for point in entry_points(group="carma.policies"))
    rows, walls = [], []
    for backfill in (0, 16):
        for name in names:
            for what, tick in (("all wait", blocked), ("8 placed", placing)):
                runs = [tick(name, backfill) for _ in range(RUNS)]
                label = f"{name}, backfill {backfill}, {what}"
                rows.append(of_runs(GROUP, label, [run.cpu_ms for run in runs], "ms", bound=3))
                walls.append(statistics.median(run.wall_ms for run in runs))
    runs = [unlike() for _ in range(RUNS)]
    label = "carma, all wait, each of another kind and its duration known"
    rows.append(of_runs(GROUP, label, [run.cpu_ms for run in runs], "ms", bound=3))
    return [*rows, of_runs(GROUP, "by the wall clock: median of all these", walls, "ms")]


def blocked(policy: str, backfill: int) -> Tick:
    """Eight busy GPUs, and a line of jobs that fit none of them: a median tick."""
    running = server.residents(1)
    core = _core(policy, backfill, running, server.line(100, QUEUED, TOO_MUCH_MIB))
    return _median(
        _timed(core, server.sampled(server.BEGUN + 100 + n, running), placed=0)
        for n in range(TICKS)
    )


def unlike() -> Tick:
    """The most that `carma` has to think about: none of the jobs fits beside those that run, and
    each needs more memory than the one before, but for a shorter time."""
    running = server.residents(1)
    line = [
        server.job(
            id,
            spec=a_spec(env=server.ENV, memory_mib=TOO_MUCH_MIB + id, expected_s=1e5 - id),
            estimate=Estimate(TOO_MUCH_MIB + id, "declared", firm=True),
        )
        for id in range(100, 100 + QUEUED)
    ]
    core = _core("carma", 0, running, line)
    return _median(
        _timed(core, server.sampled(server.BEGUN + 100 + n, running), placed=0)
        for n in range(TICKS)
    )


def placing(policy: str, backfill: int) -> Tick:
    """Eight GPUs that have just become free: the tick in which the first eight jobs start.

    In the tick before, processes of no job held them: what a policy keeps from one plan to the next
    is there. Putting the line back takes far longer than the tick, hence `RESTORED`.
    """
    core = _core(policy, backfill, [], [])
    line = server.line(100, QUEUED)

    def free_again(n: int) -> Tick:
        at = server.BEGUN + 100 + 2 * n
        core.restore(line)
        _timed(core, server.sampled(at, external_mib=server.CARDS[0].memory_mib), placed=0)
        return _timed(core, server.sampled(at + 1), placed=8)

    return _median(free_again(n) for n in range(RESTORED))


def _median(ticks: Iterable[Tick]) -> Tick:
    cpu_ms, wall_ms = zip(*ticks, strict=True)
    return Tick(statistics.median(cpu_ms), statistics.median(wall_ms))


def _core(policy: str, backfill: int, running: list[Job], line: list[Job]) -> Scheduler:
    """With its windows full, and nothing planned yet."""
    core = server.scheduler(policy, backfill)
    core.restore(running)
    for second in range(60):
        core.handle(server.sampled(server.BEGUN + 40 + second, running))
    core.restore([*running, *line])
    return core


def _timed(core: Scheduler, event: Sampled, placed: int) -> Tick:
    wall, cpu = time.perf_counter(), time.process_time()
    step = core.handle(event)
    taken = Tick((time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000)
    started = sum(isinstance(action, Launch) for action in step.actions)
    assert started == placed, f"{started} started, not {placed}"
    return taken
