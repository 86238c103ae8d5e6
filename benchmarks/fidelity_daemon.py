"""The daemon's side of `benchmarks.fidelity`: a carmad on emulated GPUs, and what it made of jobs.

What a job costs around its training is measured here, too, on jobs that are alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

from benchmarks.daemon import START_S, Daemon, plain_environment
from carmad import configfile
from carmad.config import Settings
from carmad.sim import shadow
from carmad.sim.outcome import JobOutcome, Outcome
from carmad.sim.task import Load, Task, Trace
from cli.problems import Unreachable

LOOKS_EVERY_S = 0.5  # to see whether all is done: seldom, for the jobs need the processor
PATIENCE_S = 600.0

REPEATS = 5
SHORT_S = 3.0
PLAIN = Load("calibration", memory_mib=4_000, sm_active=0.5, sm_occupancy=0.2, dram_active=0.1)
TOO_LARGE = Load("too large", memory_mib=60_000, sm_active=0.5, sm_occupancy=0.2, dram_active=0.1)


class Emulation(Daemon):
    """A carmad with the GPUs and the settings that the simulator has."""

    def __init__(self, gpus: str, settings: Settings, warmup_s: float) -> None:
        super().__init__()
        self._gpus = gpus
        self._settings = settings
        self._warmup_s = warmup_s  # of every job: what it does before its first kernel

    def __enter__(self) -> Self:
        config = self.directory / "config.toml"
        config.write_text(configfile.dump(self._settings))
        words = [sys.executable, "-m", "carmad.daemon.main", "--emulated", self._gpus]
        words += ["--state-dir", str(self.directory), "--socket", self.socket]
        words += ["--config", str(config), "--log-file", str(self.directory / "carmad.log")]
        self._process = subprocess.Popen(
            words, env=plain_environment(), stdin=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(Unreachable):
                self.get("/v1/health")
                return self
            time.sleep(0.05)
        raise SystemExit(f"carmad did not start; see {self.directory}/carmad.log")

    def replay(self, trace: Trace, declared: bool) -> Outcome:
        """Submit every task when it is due; with `declared`, say how much memory it needs."""
        begun = time.monotonic()
        for seed, task in enumerate(trace.tasks):
            time.sleep(max(0.0, begun + task.submit_s - time.monotonic()))
            memory: dict[str, Any] = {"memory_mib": task.load.memory_mib} if declared else {}
            self.run(argv(task, self._warmup_s, seed), name=task.name, gpus=task.gpus, **memory)
        self.await_end()
        return self.record()

    def await_end(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.get("/v1/jobs")["jobs"]:
            if time.monotonic() > deadline:
                raise SystemExit(f"the jobs do not end; see {self.directory}/carmad.log")
            time.sleep(LOOKS_EVERY_S)

    def record(self) -> Outcome:
        """What the daemon's history says."""
        return shadow.from_history(self.get).outcome


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a job costs beyond its training, in seconds; medians of jobs that were alone."""

    first_kernel_s: float  # from the launch until the monitor sees its first kernel
    end_s: float  # how much later than its work lets expect it is gone after that
    oom_s: float  # from when its first kernel was to be seen until it is gone, out of memory


def calibrate(emulation: Emulation, warmup_s: float) -> Overheads:
    """One job at a time, each alone on its GPU."""
    for load in (PLAIN, TOO_LARGE):
        task = Task(name=load.model, submit_s=0.0, duration_s=SHORT_S, load=load)
        for seed in range(REPEATS):
            emulation.run(argv(task, warmup_s, seed), name=task.name)
            emulation.await_end()
    return overheads(emulation.record())


def overheads(alone: Outcome) -> Overheads:
    """From a record of `REPEATS` jobs each of `PLAIN` and `TOO_LARGE`."""
    good = [job for job in alone.jobs if job.task.name == PLAIN.model]
    bad = [job for job in alone.jobs if job.task.name == TOO_LARGE.model]
    first_kernel_s = median(_until_kernel_s(job) for job in good)
    held_s = median(_held_s(job) for job in good)
    return Overheads(
        first_kernel_s,
        held_s - first_kernel_s - SHORT_S,
        max(0.0, median(_held_s(job) for job in bad) - first_kernel_s),
    )


def _until_kernel_s(job: JobOutcome) -> float:
    [attempt] = job.attempts
    assert attempt.ready_at is not None
    return attempt.ready_at - attempt.launched_at


def _held_s(job: JobOutcome) -> float:
    [attempt] = job.attempts
    return attempt.ended_at - attempt.launched_at


def argv(task: Task, warmup_s: float, seed: int) -> list[str]:
    """The command line of an emulated job that does what `task` says."""
    load = task.load
    options = {
        "model": task.name,
        "memory-mib": f"{load.memory_mib}",
        "sm": f"{load.sm_active:.4f}",
        "occupancy": f"{load.sm_occupancy:.4f}",
        "dram": f"{load.dram_active:.4f}",
        "seconds": f"{task.duration_s:.3f}",
        "warmup": f"{warmup_s:.3f}",
        "seed": f"{seed}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "carmad.gpu.emulated_job", *words]
