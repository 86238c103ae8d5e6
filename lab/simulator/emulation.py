"""One trace on both sides: through a carmad on emulated GPUs, and through the simulator.

What a job costs around its training is measured on jobs that are alone, and told the simulator.
Emulated GPUs slow their jobs by its law.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from benchmarks.daemon.carmad import Daemon
from carma_simulator import recorded
from carma_simulator.demo.sharing import argv
from carma_simulator.experiment import Experiment, Load, Outcome, Physics, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.api.wire import iso
from carmad.config import Limits, Monitor, Settings
from carmad.gpu.emulated_job import EPOCHS, noise

COMPRESSION = 10.0  # times as fast as CARMA's defaults
LOOK_EVERY_S = 0.5  # to see whether all is done: seldom, for the jobs need the processor
PATIENCE_S = 600.0

REPEATS = 5
SHORT_S = 3.0
PLAIN = Load("calibration", memory_mib=4_000, sm_active=0.5, sm_occupancy=0.2, dram_active=0.1)
TOO_LARGE = Load("too large", memory_mib=60_000, sm_active=0.5, sm_occupancy=0.2, dram_active=0.1)


def compressed(policy: str) -> Settings:
    """CARMA's defaults, `COMPRESSION` times as fast."""
    return Settings(
        policy=policy,
        estimator="declared",
        monitor=Monitor(period_s=1 / COMPRESSION, window_s=30 / COMPRESSION),
        limits=Limits(kill_grace_s=30 / COMPRESSION),
    )


class Emulation(Daemon):
    """A carmad with the GPUs and the settings that the simulator has."""

    def __init__(self, gpus: str, settings: Settings, warmup_s: float, **more: float) -> None:
        super().__init__(gpus=gpus, settings=settings)
        self._warmup_s = warmup_s  # of every job: what it does before its first kernel
        self._more = more  # options of every job

    def replay(self, trace: Trace, declared: bool) -> Outcome:
        """Submit every task when it is due; with `declared`, say how much memory it needs."""
        begun = time.monotonic()
        for seed, task in enumerate(trace.tasks):
            time.sleep(max(0.0, begun + task.submit_s - time.monotonic()))
            said: dict[str, Any] = {"memory_mib": task.load.memory_mib} if declared else {}
            if task.expected_s is not None:
                said["expected_s"] = task.expected_s
            if task.deadline_s is not None:
                said["deadline_at"] = iso(time.time() + task.deadline_s)
            said["stage_times"] = [asdict(times) for times in task.stages]
            words = argv(task, seed, self._warmup_s, **self._more)
            self.run(words, name=task.name, gpus=task.gpus, **said)
        self.await_end()
        return self.record()

    def await_end(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.get("/v1/jobs")["jobs"]:
            if time.monotonic() > deadline:
                raise SystemExit(f"the jobs do not end; see {self.directory}/carmad.log")
            time.sleep(LOOK_EVERY_S)

    def record(self) -> Outcome:
        """What the daemon's history says."""
        return recorded.from_history(self.get).outcome


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a job costs beside its training, in seconds; medians of jobs that were alone."""

    first_kernel_s: float  # from the launch until the monitor sees its first kernel
    end_s: float  # how much longer than its training it stays after that
    oom_s: float  # how long one whose memory is not to be had stays after that


def calibrate(gpus: str, settings: Settings, warmup_s: float) -> Outcome:
    """One job at a time, each alone on its GPU: some that end well, then some that need too much
    memory."""
    with Emulation(gpus, settings, warmup_s) as emulation:
        for load in (PLAIN, TOO_LARGE):
            task = Task(name=load.model, submit_s=0.0, duration_s=SHORT_S, load=load)
            for seed in range(REPEATS):
                emulation.run(argv(task, seed, warmup_s), name=task.name)
                emulation.await_end()
        return emulation.record()


def overheads(calibrations: Sequence[Outcome]) -> Overheads:
    attempts = [(job.task.name, job.attempts[0]) for found in calibrations for job in found.jobs]
    good = [attempt for name, attempt in attempts if name == PLAIN.model]
    bad = [attempt for name, attempt in attempts if name == TOO_LARGE.model]
    first_kernel_s = median(a.ready_at - a.launched_at for a in good if a.ready_at is not None)
    good_s, bad_s = (median(a.ended_at - a.launched_at for a in found) for found in (good, bad))
    return Overheads(
        first_kernel_s, good_s - SHORT_S - first_kernel_s, max(0.0, bad_s - first_kernel_s)
    )


def profile(load: Load, seed: int) -> Load:
    """What an emulated job that is told `load` asks for on average, alone: its demand changes from
    epoch to epoch (`carmad.gpu.emulated_job.train`)."""
    factors = [0.95 + 0.1 * noise(seed, epoch) for epoch in range(1, EPOCHS + 1)]

    def mean(told: float) -> float:
        return fmean(min(1.0, told * factor) for factor in factors)

    return replace(
        load,
        sm_active=mean(load.sm_active),
        sm_occupancy=mean(load.sm_occupancy),
        dram_active=mean(load.dram_active),
    )


def simulated(
    trace: Trace,
    gpus: str,
    settings: Settings,
    declared: bool,
    end_s: float,
    physics: Physics,
    stretched: Callable[[float], float] = float,
) -> Outcome:
    """The trace as `Emulation.replay` would run it: every job takes `end_s` more than its duration,
    and all of that `stretched`."""
    tasks = (
        replace(
            task,
            duration_s=stretched(task.duration_s + end_s),
            load=profile(task.load, seed),
        )
        for seed, task in enumerate(trace.tasks)
    )
    experiment = Experiment(
        replace(trace, tasks=tuple(tasks)),
        parse(gpus),
        settings,
        estimator="oracle" if declared else "none",
        physics=physics,
    )
    return simulate(experiment)
