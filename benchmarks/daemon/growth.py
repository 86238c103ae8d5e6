"""Does the daemon's memory grow with the jobs that it has seen?

Hours of a busy server in as little time as they take: the real core, store, journal, estimates,
monitor and HTTP API, fed by one thread with a clock that it moves itself; GPUs and jobs are only
pretended. At each checkpoint: what the process holds, what Python has allocated, and the lines of
code whose allocations have grown the most since the middle. `--untraced` leaves tracemalloc out,
which takes memory itself: then RSS is what an installed daemon has.
"""

from __future__ import annotations

import gc
import os
import pwd
import socket
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.daemon import http, server
from benchmarks.daemon.carmad import memory_mb
from benchmarks.harness import Report, columns, main
from carma_testing.fake_server import FIRST_PID, FakeWorld
from carmad import registry
from carmad.api.app import create_app
from carmad.api.service import Service
from carmad.attempt.evidence import Evidence, Key
from carmad.config import Access, Monitor, Settings
from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.history import History
from carmad.core.messages import Action, Estimated, EstimateMemory, Launch, Step, Stop, Submitted
from carmad.core.scheduler import Scheduler
from carmad.daemon.monitor import Monitor as MonitorThread
from carmad.edge import Follower
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.estimates.asking import Answer, Estimates, ask
from carmad.estimates.experience import Experience
from carmad.gpu.source import Capabilities, Health
from carmad.http.server import Server
from carmad.learning.trained import Models
from carmad.store.journal import Journal
from carmad.store.sql import SqlStore
from carmad.timeline.recorder import Timeline

JOBS = 20_000
SECONDS = 21_600  # pretended ones
CHECKPOINTS = 24
RUNS_S = 2  # a job
FLUSH_S = 30
LOOKED_AT_S = 5  # `carma top`, by somebody
TOP = 3  # growing lines told of each checkpoint
FLAT_KB = 0.5  # a job, over the second half
CAPABILITIES = Capabilities("pretended", ("utilization",), ())
KIB = 1024
WORDS = tuple(word for n in range(10) for word in (f"--option-{n}", "some value"))


class Time:
    """The core's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Cards:
    """The GPUs of a world in memory, as the monitor reads them."""

    name = "pretended"

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    def discover(self) -> tuple[Gpu, ...]:
        return self._world.gpus

    def sample(self, at: float) -> tuple[GpuSample, ...]:
        return tuple(self._world.reading(gpu, at) for gpu in self._world.gpus)

    def pids(self, gpu: GpuId) -> frozenset[int]:
        alive = self._world.alive.items()
        return frozenset(FIRST_PID + id for (id, _), process in alive if gpu in process.gpus)

    def silent(self) -> Mapping[GpuId, str]:
        return {}

    def health(self) -> tuple[Health, ...]:
        return ()

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def close(self) -> None:
        pass


class Owners(Evidence):
    """Whose each pretended process is."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self._world = world

    def attempt_of(self, pid: int) -> Key | None:
        key = JobId(pid - FIRST_PID), 1
        return key if key in self._world.alive else None


class Pretended(Follower):
    """All of a daemon but supervisors and processes."""

    def __init__(self, folder: Path) -> None:
        monitor = Monitor(window_s=2.0, period_s=1.0)
        settings = Settings(
            monitor=monitor, estimator="declared", access=Access(root_jobs=True), policy="exclusive"
        )
        self.clock = Time()
        self.store = SqlStore.open(folder / "carma.db")
        self.inbox = Inbox(self.clock, 1)  # type: ignore[arg-type]
        self.world = FakeWorld(server.CARDS, self.clock, self.inbox.post)
        plugins = registry.bare_policy(settings), registry.bare_recovery(settings)
        core = Scheduler(settings, *plugins)
        self.timeline = Timeline(folder / "timeline.db")
        experience = Experience(settings)
        self.monitor = MonitorThread(
            Cards(self.world), settings.monitor, self.inbox, Owners(self.world)
        )

        def answer(spec: object, *_: object) -> Answer:
            return ask("declared", settings, experience.server(), spec)  # type: ignore[arg-type]

        self.estimates = Estimates(
            answer,
            lambda job, its: self.inbox.post(Estimated(self.clock.now, job.id, its)),  # type: ignore[arg-type]
        )
        self.service = Service(
            inbox=self.inbox,
            store=self.store,
            settings=settings,
            started_at=time.time(),
            capabilities=self.monitor.capabilities,
            experience=experience,
            estimate=lambda spec, within_s, server: ([], None),
            doctor=lambda scene: [],
            models=Models(folder / "models", self.store, 0.0, lambda models: None),
            timeline=self.timeline,
        )
        self.service.events.listeners.append(self.timeline)
        self.journal = Journal(folder / "journal", core, 64 << 20)
        engine = Engine(
            self.inbox,
            core,
            self.store,
            self,
            (self.timeline, self.service, self, self.journal),
        )
        engine.restore(History())
        self._ending: deque[tuple[float, JobId]] = deque()
        self._core = threading.Thread(target=engine.run, daemon=True)
        listener = socket.socket(socket.AF_UNIX)
        self.path = str(folder / "sock")
        listener.bind(self.path)
        self.server = Server(listener, create_app(self.service))
        self._core.start()
        self.server.start()
        self.monitor._discover()

    # what the core has done

    def perform(self, action: Action) -> None:
        match action:
            case EstimateMemory(job):
                self.estimates.put(job)
            case Launch(job):
                self.world.perform(action)
                self.world.run_kernel(job.id)
                self._ending.append((self.clock.now + RUNS_S, job.id))
            case Stop():
                raise AssertionError(f"nothing is stopped here: {action}")

    def on_commit(self, step: Step) -> None:
        for job in step.jobs:
            if job.ended:
                self.estimates.end(job.id)

    # what goes on

    def submit(self, count: int) -> None:
        me = pwd.getpwuid(os.getuid())
        first = self.inbox.next_ids(count)
        made = (server.job(id, 1000 + id % 4000).spec for id in range(first, first + count))
        specs = tuple(
            replace(spec, user=me.pw_name, uid=me.pw_uid, argv=("python", f"{n}.py", *WORDS))
            for n, spec in enumerate(made, first)
        )
        self.inbox.request(Submitted(self.clock.now, first, specs)).result(60)

    def second(self) -> None:
        """Of the pretended time."""
        self.clock.now += 1.0
        while self._ending and self._ending[0][0] <= self.clock.now:
            _, id = self._ending.popleft()
            self.inbox.post(self.world.end_attempt(id))
        self.monitor._read()
        self.inbox.ask(lambda core: None).result(60)

    def flush(self) -> None:
        self.journal.flush()

    def close(self) -> None:
        self.server.stop()
        self.inbox.close()
        self._core.join()
        self.journal.flush()
        self.store.close()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    jobs: int
    rss_mb: float
    traced_mb: float
    objects: int
    growing: tuple[str, ...]


def measure(jobs: int = JOBS, untraced: bool = False) -> Report:
    seconds, traced = SECONDS * jobs // JOBS, not untraced
    found: list[Checkpoint] = []
    middle: tracemalloc.Snapshot | None = None
    with (
        tempfile.TemporaryDirectory(prefix="carma-bench-") as folder,
        closing(Pretended(Path(folder))) as daemon,
    ):
        if traced:
            tracemalloc.start()
        done = 0
        for second in range(1, seconds + 1):
            due = jobs * second // seconds
            if due > done:
                daemon.submit(due - done)
                done = due
            daemon.second()
            if second % FLUSH_S == 0:
                daemon.flush()
            if second % LOOKED_AT_S == 0:
                http.get(daemon.path, "/v1/status")
                http.get(daemon.path, f"/v1/jobs/{done}")
            if second % (seconds // CHECKPOINTS) == 0:
                gc.collect()
                shot = _snapshot() if traced else None
                if middle is None and second >= seconds // 2:
                    middle = shot
                found.append(_checkpoint(done, shot, middle))
                print(found[-1], file=sys.stderr, flush=True)
    return _report(found, jobs, traced)


def _snapshot() -> tracemalloc.Snapshot:
    ours = tracemalloc.Filter(False, tracemalloc.__file__)
    return tracemalloc.take_snapshot().filter_traces((ours,))


def _checkpoint(
    jobs: int, shot: tracemalloc.Snapshot | None, middle: tracemalloc.Snapshot | None
) -> Checkpoint:
    traced = sum(trace.size for trace in shot.traces) / 1e6 if shot else 0.0
    growing: tuple[str, ...] = ()
    if shot and middle and shot is not middle:
        grown = shot.compare_to(middle, "lineno")
        grown.sort(key=lambda one: -one.size_diff)
        growing = tuple(
            f"{'/'.join(one.traceback[0].filename.split('/')[-2:])}:{one.traceback[0].lineno}"
            f" +{one.size_diff / KIB:.0f} KiB"
            for one in grown[:TOP]
        )
    rss = memory_mb("self", "status", "VmRSS:") - tracemalloc.get_tracemalloc_memory() / 1e6
    return Checkpoint(jobs, rss, traced, len(gc.get_objects()), growing)


def slope_kb(checkpoints: list[Checkpoint], traced: bool) -> float:
    """Growth for each job, over the second half."""
    half = checkpoints[len(checkpoints) // 2 :]
    sizes = [one.traced_mb if traced else one.rss_mb for one in half]
    return statistics.linear_regression([one.jobs for one in half], sizes).slope * 1000


def _report(found: list[Checkpoint], jobs: int, traced: bool) -> Report:
    kb = slope_kb(found, traced)
    table = columns(
        found,
        ("jobs", "{0.jobs:,}"),
        ("RSS MB", "{0.rss_mb:.1f}"),
        ("allocated MB", lambda one: f"{one.traced_mb:.1f}" if traced else ""),
        ("objects", "{0.objects:,}"),
        ("grown the most since the middle", lambda one: "; ".join(one.growing)),
        text=(4,),
    )
    return Report(
        "Growth with jobs",
        [table],
        {"rows": found},
        [
            f"{found[-1].jobs:,} jobs in {SECONDS * jobs // JOBS / 3600:.1f} pretended hours",
            f"over the second half, {'allocated' if traced else 'RSS'}: {kb:+.2f} kB a job:"
            f" {'flat' if kb < FLAT_KB else 'GROWS'}",
        ],
        name="growth" if traced else "growth_untraced",
        kept=jobs == JOBS,
    )


if __name__ == "__main__":
    main("growth", measure)
