"""The workload of `carma demo`: jobs as in the first trace of the CARMA evaluation, but faster.

Durations, numbers of GPUs and memory are published. The load on the GPUs is read off the paper's
figures for the larger models, and assumed for the light ones (`carmad.sim.catalogue`). Do not quote
the latter as measured.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from carmad.sim.task import Task
from carmad.sim.traces import generators

WARMUP_S = 0.3  # of loading data, so that the first kernel is always some time after the launch


def demo_trace(seed: int = 11, jobs: int = 20, compress: float = 440.0) -> tuple[Task, ...]:
    """`jobs` submissions in order of time, `compress` times as fast as the paper's.

    With the defaults and one job per GPU, the paper's three A100s take three quarters of a minute.
    Simulated with 120 seeds, magm saved 22 % of that in the median, as it does with the default
    seed, and 27 % of the mean time from submission to end (24 %). With that seed, some job runs
    out of memory however the delays are set. A replay shows how CARMA behaves, not how much it
    gains.
    """
    return tuple(
        replace(task, submit_s=task.submit_s / compress, duration_s=task.duration_s / compress)
        for task in generators.carma_1(seed, jobs).tasks
    )


def argv(task: Task, seed: int, warmup_s: float = WARMUP_S) -> list[str]:
    """The command line of an emulated job that behaves like `task`."""
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
