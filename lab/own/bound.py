"""What no policy can beat: lower bounds on the mean JCT of a trace, sharing and preemption allowed.

Each is the largest of five relaxations. Every job starts at once and alone; or all GPUs are one
machine that does the jobs' work at any rate. A job's work is its memory times its time, as no more
than all memory is ever in use; or its SM activity times its time, as no GPU keeps more than all of
its SMs busy. That machine has the least mean JCT if it serves the least work that is left (SRPT),
and the least mean of the times at which a job's work is done, on average, if it serves the smallest
job (Goemans et al., SIAM J. Discrete Math. 2002). No job is done before half of the time that it
takes alone has passed since then: it is never quicker than alone. That is what holds for wide jobs,
which the machine would do at once (Turek et al., SPAA 1994). A job counts as on the kind of GPU
where it is quickest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from carma_simulator.experiment import Experiment, Task
from carma_simulator.workload import Workload
from carmad.core.jobs.attempt import JobId
from lab.own.families import Case


def mean_jct_s(case: Case) -> float:
    tasks, gpus = case.trace.tasks, case.gpus
    memory_mib = sum(node.gpus * node.kind.memory_mib for node in case.cluster.nodes)
    alone_s = list(_alone_s(case))
    held = (t.gpus * t.load.memory_mib / memory_mib for t in tasks)
    busy = (t.gpus * t.load.sm_active / gpus for t in tasks)
    bounds = [fmean(alone_s)]
    for parts in (held, busy):
        work = [(t, part * s) for t, part, s in zip(tasks, parts, alone_s, strict=True)]
        bounds += [srpt_s(work), mean_busy_s(work) + fmean(alone_s) / 2]
    return max(bounds)


def _alone_s(case: Case) -> Iterator[float]:
    """How long each task takes alone on the quickest kind of GPU."""
    workload = Workload(Experiment(case.trace, case.cluster))
    kinds = {node.kind.name: node.kind for node in case.cluster.nodes}.values()
    for id, task in enumerate(case.trace.tasks, start=1):
        yield task.duration_s / max(workload.full_rate(JobId(id), kind) for kind in kinds)


def srpt_s(work: Iterable[tuple[Task, float]]) -> float:
    """The mean JCT on one machine that preempts for whoever has the least left; `work`: seconds."""
    jcts_s = [
        each.until - each.submit_s for each in _serve(work, lambda _, left_s: left_s) if each.ends
    ]
    return fmean(jcts_s)


def mean_busy_s(work: Sequence[tuple[Task, float]]) -> float:
    """On one machine that preempts for whoever has the least work in all: the time from a job's
    submission to when its work is done, on average over its work, and over the jobs."""
    parts_s = (
        (each.until - each.begun) / each.whole_s * ((each.begun + each.until) / 2 - each.submit_s)
        for each in _serve(work, lambda whole_s, _: whole_s)
        if each.whole_s  # else: done at once
    )
    return math.fsum(parts_s) / len(work)


class _Slice(NamedTuple):
    """A stretch of time in which the machine serves one job. All in seconds."""

    submit_s: float
    whole_s: float  # all the job's work
    begun: float
    until: float
    ends: bool  # the job is done then


def _serve(
    work: Iterable[tuple[Task, float]], rank: Callable[[float, float], float]
) -> Iterator[_Slice]:
    """One machine that serves the lowest rank first, by a job's whole work and what is left."""
    arrivals = sorted(((task.submit_s, whole_s) for task, whole_s in work), reverse=True)
    present: list[tuple[float, float, float, float]] = []  # rank, submission, whole, left
    now = 0.0
    while arrivals or present:
        if not present:
            now = max(now, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now:
            submit_s, whole_s = arrivals.pop()
            heapq.heappush(present, (rank(whole_s, whole_s), submit_s, whole_s, whole_s))
        _, submit_s, whole_s, left_s = heapq.heappop(present)
        until = min(now + left_s, arrivals[-1][0] if arrivals else math.inf)
        ends = until == now + left_s
        yield _Slice(submit_s, whole_s, now, until, ends)
        if not ends:
            left_s -= until - now
            heapq.heappush(present, (rank(whole_s, left_s), submit_s, whole_s, left_s))
        now = until
