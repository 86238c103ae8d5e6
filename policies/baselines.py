"""Baseline policies from the papers, one value each. If a paper leaves a choice open, or measures
what CARMA cannot, the policy's docstring says what it does instead.

`fifo` is `exclusive`, and `qssf` is `ssf`, under the name that papers use.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from carmad.plugin import Demand, GpuId, GpuView, Job, Reason, Settings, View, idle
from policies.builtin import exclusive, in_order
from policies.filters import fits_memory, min_free, unoccupied
from policies.preemptive import Preemptive
from policies.ranked import Filter, Fit, Order, Rank, Ranked, by_arrival

ROUNDING_S = 1e-3  # what is left of a queue's limit below this is a float's doing

# Tiresias: two queues, and their limit in GPU-seconds, are what its authors simulate with
# (SymbioticLab/Tiresias, simulator/jobs.py). Lucid's simulator has 18,000.
FIRST_QUEUE_GPU_S = 3250.0

# Horus: the weight of memory in its cost and the most jobs on a GPU, as its first author simulates
# it (matthewygf/GPUSchedule, core/scheduling/horus.py and infra/device.py).
MEMORY_WEIGHT = 1.3
HORUS_JOBS = 3
# What it would predict of a job: here the mean of the 66 configurations that Lucid's authors
# measured alone (their artifact's profiles on an RTX 3090), for every job.
NEWCOMER_UTILIZATION = 0.51

CASTOR_JOBS = 2  # on a GPU at once (Castor paper, 5.2.2)


# -- in an order of their own, each job alone on its GPUs


def fifo(settings: Settings) -> Ranked:
    """First in, first out (Lucid paper, 4.1; Castor paper, 9.1)."""
    return replace(exclusive(settings), name="fifo")


def sjf(settings: Settings) -> Ranked:
    """Shortest job first (Lucid paper, 4.1). With predicted durations: SPJF (A-SRPT paper)."""
    return _unshared("sjf", settings, shortest)


def ssf(settings: Settings) -> Ranked:
    """Shortest service first (Castor paper, 9.1). With predicted durations: SPWF (A-SRPT paper)."""
    return _unshared("ssf", settings, least_service)


def qssf(settings: Settings) -> Ranked:
    """Quasi-shortest service first (Hu et al., Helios, SC 2021): ssf, under the name that it has
    where durations are predicted. A policy predicts nothing itself: the predictor does."""
    return replace(ssf(settings), name="qssf")


# -- with preemption


def srtf(settings: Settings) -> Preemptive:
    """Shortest remaining time first (Schrage, Operations Research 1968; A-SRPT paper, IV).

    A job that is told to stop may run on for `kill_grace_s`: it is not preempted for one that is
    ahead of it by less, or it would be first in line again.
    """
    unshared = _unshared("srtf", settings)
    return Preemptive("srtf", unshared, remaining_s, margin=settings.limits.kill_grace_s)


def tiresias(settings: Settings) -> Preemptive:
    """Discretised 2D-LAS with two queues (Gu et al., NSDI 2019, 3.2).

    All jobs begin in the first queue, and a job whose attained service reaches the queue's limit
    goes to the second. Within a queue they go by arrival, which is the order in which they first
    start, as in the paper: what waits in the second queue has come through the first one in that
    order. Only a job of the first queue preempts, and only ones of the second. The paper's
    promotion of starving jobs is left out.
    """
    unshared = _unshared("tiresias", settings)
    return Preemptive("tiresias", unshared, queue_number, worse_at=demoted_at)


# -- sharing


def sjf_ffs(settings: Settings) -> Ranked:
    """Shortest job first with first-fit sharing (Castor paper, 9.1): where too few GPUs are idle,
    a job joins others on the first ones with enough memory, however busy these are."""
    filters = (*_memory("sjf_ffs", settings), jobs_below(CASTOR_JOBS))
    return IdleFirst("sjf_ffs", filters, occupied(settings), shortest)


def horus(settings: Settings) -> Ranked:
    """Utilisation-aware packing (Yeung et al., TPDS 2022), in order of arrival.

    A job joins others only where the utilisation adds up to no more than 1, and goes where the
    cost is least. Horus predicts a job's utilisation from its model's graph; CARMA measures the
    GPU's (SMACT stands for it) and takes every newcomer for an average one. The five jobs that
    Horus looks ahead are `limits.backfill`.
    """
    utilization = utilization_with_newcomer(settings)
    filters = (*_memory("horus", settings), jobs_below(HORUS_JOBS), not_overfull(utilization))
    return Ranked("horus", filters, packing_cost(utilization))


@dataclass(frozen=True, slots=True, eq=False)
class IdleFirst(Ranked):
    """A rank of 0 means idle. Uses only idle GPUs if there are enough."""

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        ends = [bisect_right(fit.ranks, 0.0) for fit in fits]
        idle = [Fit(f.ranks[:end], f.gpus[:end], ()) for f, end in zip(fits, ends, strict=True)]
        return Ranked.choose(self, idle, gpus, view) or Ranked.choose(self, fits, gpus, view)


# -- orders and priorities: the lowest goes first; without an expected duration a job goes last


def shortest(job: Job) -> float:
    return math.inf if job.expected_s is None else job.expected_s


def least_service(job: Job) -> float:
    """In GPU-seconds."""
    return shortest(job) * job.spec.gpus


def remaining_s(job: Job, now: float) -> float:
    return shortest(job) - job.attained_s(now)


def queue_number(job: Job, now: float) -> float:
    return float(now >= demoted_at(job))


def demoted_at(job: Job) -> float:
    """When its attained service reaches the first queue's limit; infinite while it waits.

    An instant rather than a duration, so that the policy, asked at it, finds it reached.
    """
    left_s = FIRST_QUEUE_GPU_S / job.spec.gpus - job.served_s
    if left_s < ROUNDING_S:
        return -math.inf
    if not job.holds_gpus or job.started_at is None:
        return math.inf
    return job.started_at + left_s


# -- of a GPU


def occupied(settings: Settings) -> Rank:
    """1 for a GPU that somebody uses, 0 for an idle one."""
    return lambda gpu: float(idle(gpu, settings) is not None)


def utilization_with_newcomer(settings: Settings) -> Rank:
    """What Horus would expect of the GPU with one more job. On an idle GPU the window still tells
    of who was there before."""

    def expected(gpu: GpuView) -> float:
        unused = idle(gpu, settings) is None
        return NEWCOMER_UTILIZATION + (0.0 if unused else gpu.score.sm_mean)

    return expected


def packing_cost(utilization: Rank) -> Rank:
    """Horus's cost: memory in use, utilisation that a new job leaves unused, and neighbours."""

    def cost(gpu: GpuView) -> float:
        memory = 1 - gpu.free_mib / gpu.gpu.memory_mib
        return MEMORY_WEIGHT * memory + (1 - utilization(gpu)) + len(gpu.residents)

    return cost


def not_overfull(utilization: Rank) -> Filter:
    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        if utilization(gpu) <= 1:
            return None
        return Reason("risk", 1 - NEWCOMER_UTILIZATION, gpu.score.sm_mean, "SMACT")

    return refuse


def jobs_below(limit: int) -> Filter:
    """Fewer jobs than this are on the GPU."""

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        jobs = len(gpu.residents)
        return Reason("jobs_per_gpu", limit, jobs, "jobs") if jobs >= limit else None

    return refuse


def _memory(policy: str, settings: Settings) -> tuple[Filter, Filter]:
    conditions = settings.preconditions_for(policy)
    return fits_memory(conditions, settings), min_free(conditions, settings)


def _unshared(name: str, settings: Settings, order: Order = by_arrival) -> Ranked:
    return Ranked(name, (unoccupied(settings),), in_order, order)
