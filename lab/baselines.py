"""Baseline policies from the papers, one value each. Where a paper leaves a choice open, or uses
measurements that CARMA lacks, the policy's docstring says what is done instead.

`fifo` is `exclusive`, and `qssf` is `ssf`, under the names that papers use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from carmad.plugin import Demand, GpuId, GpuView, Job, Reason, Settings, System, View, idle
from lab.preemptive import Preemptive
from policies.builtin import exclusive, in_order
from policies.castor.sharing import JOBS_PER_GPU
from policies.filters import fits_memory, min_free, only_idle
from policies.ranked import Ranked
from policies.rules import Filter, Fit, Order, Rank, by_arrival, least_service, shortest

ROUNDING_S = 1e-3  # a smaller remainder of a queue's limit is a rounding error

# Tiresias: two queues, and their limit in GPU-seconds, are what its authors simulate with
# (SymbioticLab/Tiresias, simulator/jobs.py). Lucid's simulator has 18,000.
FIRST_QUEUE_GPU_S = 3250.0

# Horus: the weight of memory in its cost and the most jobs on a GPU, as its first author simulates
# it (matthewygf/GPUSchedule, core/scheduling/horus.py and infra/device.py).
MEMORY_WEIGHT = 1.3
HORUS_JOBS = 3
# The utilisation that it predicts for every job: here the mean of the 66 configurations that
# Lucid's authors measured alone (their artifact's profiles on an RTX 3090).
NEWCOMER_UTILIZATION = 0.51


# -- in an order of their own, each job alone on its GPUs


def fifo(settings: Settings) -> Ranked:
    """First in, first out (Lucid paper, 4.1; Castor paper, 9.1)."""
    return replace(exclusive(settings), name="fifo")


def sjf(settings: Settings) -> Ranked:
    """Shortest job first (Lucid paper, 4.1). With predicted durations: SPJF (A-SRPT paper)."""
    return _alone("sjf", settings, shortest)


def ssf(settings: Settings) -> Ranked:
    """Shortest service first (Castor paper, 9.1). With predicted durations: SPWF (A-SRPT paper)."""
    return _alone("ssf", settings, least_service)


def qssf(settings: Settings) -> Ranked:
    """Quasi-shortest service first (Hu et al., Helios, SC 2021): the name of ssf with predicted
    durations, which come from the predictor, not from the policy."""
    return replace(ssf(settings), name="qssf")


# -- with preemption

PREEMPTING = System({"limits.preemption": True})


def srtf(settings: Settings) -> Preemptive:
    """Shortest remaining time first (Schrage, Operations Research 1968; A-SRPT paper, IV).

    A job that is told to stop may run on for `kill_grace_s`. So it is not preempted for a job that
    is ahead of it by less, or it could be first in line again.
    """
    unshared = _alone("srtf", settings)
    return Preemptive("srtf", unshared, remaining_s, margin=settings.limits.kill_grace_s)


def tiresias(settings: Settings) -> Preemptive:
    """Discretised 2D-LAS with two queues (Gu et al., NSDI 2019, 3.2).

    All jobs begin in the first queue, and a job whose attained service reaches the queue's limit
    moves to the second. Within a queue, jobs are in order of arrival, which is also the order in
    which they first start, as in the paper: jobs reach the second queue in that order. Only jobs of
    the first queue preempt, and only jobs of the second. The paper's promotion of starving jobs is
    left out.
    """
    unshared = _alone("tiresias", settings)
    return Preemptive("tiresias", unshared, queue_number, worse_at=demotion_at)


# -- sharing


def sjf_ffs(settings: Settings) -> Ranked:
    """Shortest job first with first-fit sharing (Castor paper, 9.1): if too few GPUs are idle, a
    job joins others on the first GPUs with enough memory, however busy they are."""
    filters = (*_memory("sjf_ffs", settings), jobs_below(JOBS_PER_GPU))
    return OnlyIdle("sjf_ffs", filters, in_order, shortest, idle_first=True)


def horus(settings: Settings) -> Ranked:
    """Utilisation-aware packing (Yeung et al., TPDS 2022), in order of arrival.

    A job joins others only if their utilisation adds up to at most 1, and goes where the cost is
    lowest. Horus predicts a job's utilisation from its model's graph; CARMA measures the GPU's
    (as SMACT) and assumes that every newcomer is average. Horus's look-ahead of five jobs is
    `limits.backfill`.
    """
    utilization = utilization_with_newcomer(settings)
    filters = (*_memory("horus", settings), jobs_below(HORUS_JOBS), not_overfull(utilization))
    return Ranked("horus", filters, packing_cost(utilization))


@dataclass(frozen=True, slots=True, eq=False)
class OnlyIdle(Ranked):
    """Uses only idle GPUs if there are enough, even on several nodes."""

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        idle_ones = [fit.idle() for fit in fits]
        return Ranked.choose(self, idle_ones, gpus, view) or Ranked.choose(self, fits, gpus, view)


# -- priorities: lowest first; jobs without an expected duration go last


def remaining_s(job: Job, now: float) -> float:
    return shortest(job) - job.attained_s(now)


def queue_number(job: Job, now: float) -> float:
    return float(now >= demotion_at(job))


def demotion_at(job: Job) -> float:
    """When its attained service will reach the first queue's limit; infinite while it waits, or is
    suspended.

    A time rather than a duration, so that a policy called at that time finds it reached.
    """
    limit_s = FIRST_QUEUE_GPU_S / job.spec.gpus
    waits = not job.holds_gpus or job.started_at is None or job.suspension
    if limit_s - (job.attained_s(math.inf) if waits else job.served_s) < ROUNDING_S:
        return -math.inf
    if waits or job.started_at is None:
        return math.inf
    return job.started_at + job.current.suspended_s + limit_s - job.served_s


# -- of a GPU


def utilization_with_newcomer(settings: Settings) -> Rank:
    """The GPU's expected utilisation with one more job. On an idle GPU, only the newcomer counts:
    the window still shows earlier jobs."""

    def utilization(gpu: GpuView) -> float:
        unused = idle(gpu, settings) is None
        return NEWCOMER_UTILIZATION + (0.0 if unused else gpu.score.sm_mean)

    return utilization


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


def _alone(name: str, settings: Settings, order: Order = by_arrival) -> Ranked:
    return Ranked(name, (only_idle(settings),), in_order, order)
