"""Ticks of the core: how long one takes with 2,048 jobs in line, for each policy; and whether it,
store included, grows dearer with the number of ended jobs.

A tick is `Scheduler.handle(Sampled)`, all that the core does in it: windows, meters, the view, the
policy's plan and its check. What counts is the processor time of all threads, since policies run
behind a guard that has a thread of its own; waiting for a core that others use is no part of
planning. The time by the wall clock is shown beside it.

Beside the ended jobs, eight run and ten wait. Most ticks write nothing; once a minute what the jobs
used is saved, so sixty ticks are timed together.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from benchmarks.daemon import server
from benchmarks.harness import Row, of_runs
from carma_testing import a_spec
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.messages import Action, Launch, Sampled
from carmad.core.scheduler import Scheduler
from carmad.loop import turn
from carmad.store.sql import SqlStore

GROUP = "planning, 2,048 queued"
QUEUED = 2048
TICKS, RESTORED = 20, 7  # of which the median is taken, per run
RUNS = 3
TOO_MUCH_MIB = 35_000  # fits no GPU that somebody else is on

GROWTH_GROUP = "tick and ended jobs"
ENDED = (0, 1_000, 20_000)
WAITING = 10
PER_MINUTE = 60
ROUNDS = 9
GROWTH = 1.25  # what is taken for "does not grow", on a noisy machine


class Tick(NamedTuple):
    cpu_ms: float
    wall_ms: float


def measure_planning() -> list[Row]:
    names = sorted(point.name for point in entry_points(group="carma.policies"))
    rows, walls = [], []
    for backfill in (0, 16):
        for name in names:
            for what, tick in (("all wait", wait_all), ("8 placed", placing)):
                runs = [tick(name, backfill) for _ in range(RUNS)]
                label = f"{name}, backfill {backfill}, {what}"
                rows.append(of_runs(GROUP, label, [run.cpu_ms for run in runs], "ms", bound=3))
                walls.append(statistics.median(run.wall_ms for run in runs))
    runs = [unlike() for _ in range(RUNS)]
    label = "carma, all wait, each of another kind and its duration known"
    rows.append(of_runs(GROUP, label, [run.cpu_ms for run in runs], "ms", bound=3))
    return [*rows, of_runs(GROUP, "by the wall clock: median of all these", walls, "ms")]


def wait_all(policy: str, backfill: int) -> Tick:
    """Eight busy GPUs, and a line of jobs that fit none of them: a median tick."""
    running = server.residents(1)
    core = _core(policy, backfill, running, server.line(100, QUEUED, TOO_MUCH_MIB))
    return _median(
        _time(core, server.reading(server.BEGUN + 100 + n, running), placed=0) for n in range(TICKS)
    )


def unlike() -> Tick:
    """The hardest case for `carma`: none of the jobs fits beside those that run, and each needs
    more memory than the one before, but for a shorter time."""
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
        _time(core, server.reading(server.BEGUN + 100 + n, running), placed=0) for n in range(TICKS)
    )


def placing(policy: str, backfill: int) -> Tick:
    """Eight GPUs that have just become free: the tick in which the first eight jobs start.

    In the tick before, processes of no job held them, so the policy has what it keeps from one plan
    to the next. Putting the line back takes far longer than the tick, hence `RESTORED`.
    """
    core = _core(policy, backfill, [], [])
    line = server.line(100, QUEUED)

    def free_again(n: int) -> Tick:
        at = server.BEGUN + 100 + 2 * n
        core.restore(line)
        _time(core, server.reading(at, external_mib=server.CARDS[0].memory_mib), placed=0)
        return _time(core, server.reading(at + 1), placed=8)

    return _median(free_again(n) for n in range(RESTORED))


def _median(ticks: Iterable[Tick]) -> Tick:
    cpu_ms, wall_ms = zip(*ticks, strict=True)
    return Tick(statistics.median(cpu_ms), statistics.median(wall_ms))


def _core(policy: str, backfill: int, running: list[Job], line: list[Job]) -> Scheduler:
    """With its windows full, and nothing planned yet."""
    core = server.scheduler(policy, backfill)
    core.restore(running)
    for second in range(60):
        core.handle(server.reading(server.BEGUN + 40 + second, running))
    core.restore([*running, *line])
    return core


def _time(core: Scheduler, event: Sampled, placed: int) -> Tick:
    wall, cpu = time.perf_counter(), time.process_time()
    step = core.handle(event)
    taken = Tick((time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000)
    started = sum(isinstance(action, Launch) for action in step.actions)
    assert started == placed, f"{started} started, not {placed}"
    return taken


class Nowhere:
    """A world in which nothing is ever done."""

    def perform(self, action: Action) -> None:
        raise AssertionError(f"nothing should happen: {action}")


class Side:
    """One database, and the core that was restored from it."""

    def __init__(self, directory: Path, ended: int) -> None:
        directory.mkdir()
        server.write_ended(directory, ended)
        self.store = SqlStore.open(directory / "carma.db")
        self.running = server.residents(1, first=ended + 1, exclusive=True)
        line = server.line(ended + 100, WAITING)
        self.store.commit(server.waiting([*self.running, *line]))
        saved = self.store.restore()
        self.core = server.scheduler()
        self.core.restore(saved.jobs, saved.ended, saved.drains)
        self.taken: list[float] = []
        self.now = server.BEGUN + 100

    def tick(self) -> None:
        """A minute of ticks; keeps the microseconds of an average one."""
        readings = []
        for _ in range(PER_MINUTE):
            self.now += 1.0
            readings.append(server.reading(self.now, self.running))
        begun = time.process_time()
        for reading in readings:
            turn(self.core, self.store, Nowhere(), reading)
        self.taken.append((time.process_time() - begun) / PER_MINUTE * 1e6)


def measure_growth() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as folder:
        sides = {ended: Side(Path(folder) / str(ended), ended) for ended in ENDED}
        for _ in range(1 + ROUNDS):
            for side in sides.values():
                side.tick()
        for side in sides.values():
            side.store.close()
            del side.taken[0]  # in which the windows were filled and the waiting jobs judged
    rows = [
        of_runs(GROWTH_GROUP, f"a tick with {ended:,}", side.taken, "µs")
        for ended, side in sides.items()
    ]
    pairs = zip(sides[ENDED[-1]].taken, sides[0].taken, strict=True)
    ratios = [many / none for many, none in pairs]
    note = "processor time, side by side"
    rows.append(
        of_runs(GROWTH_GROUP, f"{ENDED[-1]:,} against none", ratios, "×", bound=GROWTH, note=note)
    )
    return rows
