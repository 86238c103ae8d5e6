"""Whether a tick, core and store together, grows dearer with the number of ended jobs.

Eight jobs run and ten wait. Most ticks write nothing; once a minute what the jobs used is saved,
so sixty ticks are timed together.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.daemon import history, server
from benchmarks.harness.rows import Row, of_runs
from carmad.core.messages import Action
from carmad.loop import turn
from carmad.store.sql import SqlStore

GROUP = "tick and ended jobs"
ENDED = (0, 1_000, 20_000)
WAITING = 10
TICKS = 60
ROUNDS = 9
GROWTH = 1.25  # what is taken for "does not grow", on a noisy machine


class Nowhere:
    """A world in which nothing is ever done."""

    def perform(self, action: Action) -> None:
        raise AssertionError(f"nothing should happen: {action}")


class Side:
    """One database, and the core that was restored from it."""

    def __init__(self, directory: Path, ended: int) -> None:
        directory.mkdir()
        history.write_ended(directory, ended)
        self.store = SqlStore.open(directory / "carma.db")
        self.running = server.residents(1, first=ended + 1, exclusive=True)
        line = server.line(ended + 100, WAITING)
        self.store.commit(history.waiting([*self.running, *line]))
        saved = self.store.restore()
        self.core = server.scheduler()
        self.core.restore(saved.jobs, saved.ended, saved.drains)
        self.taken: list[float] = []
        self.now = server.BEGUN + 100

    def tick(self) -> None:
        """A minute of ticks; keeps the microseconds of an average one."""
        readings = []
        for _ in range(TICKS):
            self.now += 1.0
            readings.append(server.sampled(self.now, self.running))
        begun = time.process_time()
        for reading in readings:
            turn(self.core, self.store, Nowhere(), reading)
        self.taken.append((time.process_time() - begun) / TICKS * 1e6)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as folder:
        sides = {ended: Side(Path(folder) / str(ended), ended) for ended in ENDED}
        for _ in range(1 + ROUNDS):
            for side in sides.values():
                side.tick()
        for side in sides.values():
            side.store.close()
            del side.taken[0]  # in which the windows were filled and the waiting jobs judged
    rows = [
        of_runs(GROUP, f"a tick with {ended:,}", side.taken, "µs") for ended, side in sides.items()
    ]
    pairs = zip(sides[ENDED[-1]].taken, sides[0].taken, strict=True)
    ratios = [many / none for many, none in pairs]
    note = "processor time, side by side"
    rows.append(of_runs(GROUP, f"{ENDED[-1]:,} against none", ratios, "×", bound=GROWTH, note=note))
    return rows
