"""The workloads that `lab.castor` puts through the simulator, made of public traces.

The Castor paper (9.1) samples 240 jobs "from the busiest period" of Philly and of Venus, and runs
them on 16 servers of 8 A6000. Of neither sample are the jobs known. The Sia artifact has samples of
160 jobs, six of Philly and seven of Saturn, which is a cluster of SenseTime's as Venus is: each
spans eight hours. Here 240 jobs are a sample and half of the next one, in the same eight hours. On
128 A6000 that is a load of about 1; 160 jobs are too few for queues. `as_queued` has them at the
paper's load.

All jobs of one application and batch size share a name, and so a profile. The paper profiles each
configuration once, offline: here one job of each runs before the trace begins (`profiled_before`).
Durations are converted to the cluster's GPU beforehand, so that the policies which know durations
know them for the GPUs at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import linear_regression, median

from carma_simulator.catalogue import PROFILES, key
from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.traces.rows import in_order
from carma_simulator.traces.sources import assign, load
from carmad.gpu.kinds import KINDS
from lab.data import DATA, read
from lab.pairs import lucid_alone
from policies.castor.pairing import FIXED_SHARE

GPU = "A6000-48GB"  # the paper's
MURI_GPU = "V100-32GB"  # on which Muri's durations were measured
JOBS = 240  # the paper's baseline; a sample of Sia's has 160
# By how much durations, and times between arrivals, are multiplied so that FIFO's JCT less its
# queueing, and the share of queueing in its JCT, are the paper's in the mean over five samples.
# Nothing else was looked at.
PACES = {"philly": (1.353, 0.339), "saturn": (2.034, 0.46)}
BEGIN_S = 3600.0  # when a trace begins, after profiling
PROFILED_S = 300.0  # how long a job runs for that


_loaded = cache(load)


def files(family: str) -> list[Path]:
    """Sia's samples of `family`, philly or saturn."""
    return sorted((DATA / "sia" / "workloads").glob(f"{family}-workload-*.csv"))


def sampled(family: str, first: int, jobs: int = JOBS, gpu: str = GPU) -> Trace:
    """`jobs` jobs in eight hours: all of the first sample, of the next one, and so on, from the
    last of these a draw."""
    tasks: list[Task] = []
    for path in islice(cycle(files(family)), first, None):
        more = _loaded(f"sia:{path}").tasks
        missing = jobs - len(tasks)
        tasks += more if missing >= len(more) else Random(first).sample(more, missing)
        if len(tasks) == jobs:
            break
    return in_order(f"{family}-{first + 1}", (on(gpu, task) for task in tasks))


def as_queued(family: str, first: int) -> Trace:
    """The jobs of `sampled`, as long and as far apart as FIFO's row of the paper tells."""
    longer, later = PACES[family]
    trace = sampled(family, first)
    paced = (
        replace(task, submit_s=later * task.submit_s, duration_s=longer * task.duration_s)
        for task in trace.tasks
    )
    return replace(trace, tasks=tuple(paced))


def muri(number: int, jobs: int, gpu: str = MURI_GPU) -> Trace:
    """The `jobs` jobs that follow each other the fastest in Muri's trace, less the time before."""
    tasks = _loaded(f"muri:{DATA}/muri/trace{number}.csv").tasks
    begins = range(len(tasks) - min(jobs, len(tasks)) + 1)
    last = min(jobs, len(tasks)) - 1
    begin = min(begins, key=lambda n: tasks[n + last].submit_s - tasks[n].submit_s)
    return in_order(f"muri-{number}", (on(gpu, task) for task in tasks[begin : begin + last + 1]))


def on(gpu: str, task: Task) -> Task:
    """The task as if it had been measured on that kind of GPU."""
    model = key(task.load.model)
    old, new = (dict(k.speeds).get(model, k.speed) for k in (KINDS[task.reference], KINDS[gpu]))
    name = f"{task.load.model}-{task.load.batch_size}"
    return replace(task, name=name, duration_s=task.duration_s * old / new, reference=gpu)


def with_lucids_models(trace: Trace, seed: int) -> Trace:
    """The same jobs at the same times, each training one of the configurations whose pairs Lucid's
    authors measured: the larger jobs the larger ones."""
    known = [profile for profile in PROFILES if profile.source == "Lucid artifact"]
    unnamed = replace(trace, tasks=tuple(replace(task, load=Load()) for task in trace.tasks))
    tasks = assign(unnamed, seed, known).tasks
    named = (replace(t, name=f"{t.load.model}-{t.load.batch_size}") for t in tasks)
    return replace(trace, tasks=tuple(named))


def profiled_before(trace: Trace) -> Trace:
    """The trace from `BEGIN_S` on; before it a short run of each of its jobs (on other numbers of
    GPUs it is another job)."""
    first = {(task.user, task.name, task.gpus): task for task in reversed(trace.tasks)}
    profiling = (replace(task, submit_s=0.0, duration_s=PROFILED_S) for task in first.values())
    later = (replace(task, submit_s=task.submit_s + BEGIN_S) for task in trace.tasks)
    return replace(trace, tasks=(*profiling, *later))


def resizable(trace: Trace) -> Trace:
    """The trace with every owner's leave to split batches.

    Each part takes again the share of a step's time that `policies.castor.pairing` assumes, the
    median of what was fitted to Sia's applications."""
    shares = batch_shares()
    usual = median(shares.values())

    def opted_in(task: Task) -> Task:
        batch_mib = round(task.load.memory_mib * shares.get(key(task.load.model), usual))
        load = replace(task.load, batch_mib=batch_mib, fixed_share=FIXED_SHARE)
        return replace(task, resizable=True, load=load)

    return replace(trace, tasks=tuple(map(opted_in, trace.tasks)))


@cache
def batch_shares() -> Mapping[str, float]:
    """By model, of its memory at its largest batch what is in proportion to the batch: a straight
    line through what was measured at 32, 64 and 128 (Lucid, without mixed precision), and of
    torchvision's networks at all sizes that fitted (GPUMemNet's timm runs)."""
    measured: dict[str, dict[int, float]] = defaultdict(dict)
    for row in lucid_alone().values():
        if row["amp"] == "0":
            measured[key(row["model"])][int(row["batchsize"])] = float(row["gmem"])
    for row in read("memory/timm_runs.csv"):
        peak = float(row["max_gpu_memory_mib"])
        if row["model"] in ("resnet18", "vgg16", "vgg19") and peak < 38_500:
            measured[key(row["model"])][int(row["batch_size"])] = peak
    return {model: _share(points) for model, points in measured.items() if len(points) > 1}


def _share(points: Mapping[int, float]) -> float:
    slope, intercept = linear_regression(list(points), list(points.values()))
    return max(0.0, 1 - intercept / (intercept + slope * max(points)))
