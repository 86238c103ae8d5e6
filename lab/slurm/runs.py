"""One run of a trace on the cluster, and what became of its jobs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import psutil

from carma_simulator.experiment import Task
from carma_simulator.traces import generators
from lab.slurm.ways import GPUS, NODES, Way

PAPERS_GPUS = 3  # the trace is for as many
COMPRESSED = 900.0


def trace(seed: int, jobs: int, compressed: float = COMPRESSED) -> tuple[Task, ...]:
    """The CARMA paper's first trace, as much faster as there are more GPUs, and compressed."""
    tasks = generators.carma_1(seed, jobs).tasks
    faster = compressed * NODES * GPUS / PAPERS_GPUS
    return tuple(
        replace(task, submit_s=task.submit_s / faster, duration_s=task.duration_s / compressed)
        for task in tasks
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """What the jobs themselves wrote down."""

    way: str
    seed: int
    jobs: int
    makespan_s: float
    jct_s: float
    jct_median_s: float
    reruns: int  # beginnings beyond each job's first
    failed: int  # ended, but never well
    lost: int  # never ended
    doubled: int  # ended well more than once
    held: int = 0  # by Slurm, after a failed launch, until they were released
    busy: float = 0.0  # this machine's cores; near 1, jobs wait for them and not for GPUs


def run(
    way: Way,
    seed: int,
    jobs: int,
    meanwhile: Callable[[Way], None] | None = None,
    compressed: float = COMPRESSED,
) -> Ran:
    """Submit the trace, wait for all jobs. `meanwhile` is called after half of the submissions."""
    tasks = trace(seed, jobs, compressed)
    submitted: dict[int, float] = {}
    with way.runs():
        begun = time.time()
        psutil.cpu_percent()
        for number, task in enumerate(tasks):
            if meanwhile is not None and number == jobs // 2:
                meanwhile(way)
                begun = time.time() - task.submit_s  # the rest at their pace
            time.sleep(max(0.0, begun + task.submit_s - time.time()))
            submitted[number] = time.time()
            way.submit(task, number)
        held = 0
        while way.cluster.run("squeue", "-h", "-o", "%A"):
            held += way.cluster.tend()
            time.sleep(0.5)
        busy = psutil.cpu_percent() / 100
    return replace(judged(way.name, seed, way.record, submitted), held=held, busy=busy)


def judged(way: str, seed: int, record: Path, submitted: dict[int, float]) -> Ran:
    """`record` has lines of "begin JOB TIME" and "end JOB TIME CODE"."""
    begins: dict[int, list[float]] = defaultdict(list)
    ends: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for what, job, at, *code in map(str.split, record.read_text().splitlines()):
        number = int(job)
        if what == "begin":
            begins[number].append(float(at))
        else:
            ends[number].append((float(at), int(code[0])))
    good = {job: [at for at, code in ends[job] if code == 0] for job in submitted}
    done = {job: times[0] for job, times in good.items() if times}
    waits = [done[job] - submitted[job] for job in done]
    return Ran(
        way=way,
        seed=seed,
        jobs=len(submitted),
        makespan_s=max(done.values(), default=0.0) - min(submitted.values()),
        jct_s=fmean(waits) if waits else 0.0,
        jct_median_s=median(waits) if waits else 0.0,
        reruns=sum(len(times) - 1 for times in begins.values()),
        failed=sum(1 for job in submitted if ends[job] and not good[job]),
        lost=sum(1 for job in submitted if not ends[job]),
        doubled=sum(1 for times in good.values() if len(times) > 1),
    )


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios, seed by seed."""
    return median(a / b for a, b in zip(over, under, strict=True))
