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
from collections.abc import Iterable, Iterator
from statistics import fmean

from carmad.core.types import JobId
from carmad.sim.experiment import Experiment, Task
from carmad.sim.workload import Workload
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
    arrivals = sorted(((task.submit_s, left_s) for task, left_s in work), reverse=True)
    present: list[tuple[float, float]] = []  # what is left, when it came
    now, total_s, jobs = 0.0, 0.0, len(arrivals)
    while arrivals or present:
        if not present:
            now = max(now, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now:
            submit_s, left_s = arrivals.pop()
            heapq.heappush(present, (left_s, submit_s))
        left_s, submit_s = heapq.heappop(present)
        until = arrivals[-1][0] if arrivals else float("inf")
        if now + left_s <= until:
            now += left_s
            total_s += now - submit_s
        else:
            heapq.heappush(present, (left_s - (until - now), submit_s))
            now = until
    return total_s / jobs


def mean_busy_s(work: Iterable[tuple[Task, float]]) -> float:
    """On one machine that preempts for whoever has the least work in all: the time from a job's
    submission to when its work is done, on average over its work, and over the jobs."""
    arrivals = sorted(((task.submit_s, left_s) for task, left_s in work), reverse=True)
    present: list[tuple[float, float, float]] = []  # all its work, when it came, what is left
    now, total_s, jobs = 0.0, 0.0, len(arrivals)
    while arrivals or present:
        if not present:
            now = max(now, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now:
            submit_s, whole_s = arrivals.pop()
            heapq.heappush(present, (whole_s, submit_s, whole_s))
        whole_s, submit_s, left_s = heapq.heappop(present)
        until = min(now + left_s, arrivals[-1][0] if arrivals else float("inf"))
        if whole_s == 0:
            continue  # done at once
        total_s += (until - now) / whole_s * ((now + until) / 2 - submit_s)
        if until < now + left_s:
            heapq.heappush(present, (whole_s, submit_s, left_s - (until - now)))
        now = until
    return total_s / jobs
