"""The properties of a job that packing depends on, computed once per version of the job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from carmad.plugin import Job, JobId, Reason, Tree
from policies.lucid import packing
from policies.memory import need_mib

# The paper does not define "an unstable resource utilization pattern" (Lucid paper, 3.3, rule 4).
# Here it is a utilisation (0–1) whose standard deviation exceeds 0.3: it swings between idle and
# busy. A job that was evicted for it stays alone from then on.
UNSTABLE = 0.3**2
UTILIZATION = ("gpu_utilization", "memory_utilization")
REMEMBERED = 16_384  # jobs


class Traits(NamedTuple):
    job: Job  # this version of it
    priority: float  # GPUs × predicted duration, GPU-seconds; lowest first
    need_mib: int  # memory on each GPU
    score: int  # sharing score, 0 to 2
    utilization: float  # of the GPU while it ran alone, 0–1
    aloof: Reason | None  # why it does not share, with "this job" as its detail


Priority = Callable[[Job], float]
TraitsOf = Callable[[Job, int], Traits]  # for GPUs with this much memory, in MiB


def service(job: Job) -> float:
    """Algorithm 2, line 4. Jobs of unknown duration go last."""
    return math.inf if job.expected_s is None else job.spec.gpus * job.expected_s


class Known:
    """Caches traits. Versions of a job are compared by identity: comparing values would take longer
    than computing the traits again."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._traits: TraitsOf

    def traits(self, tree: Tree, priority: Priority) -> TraitsOf:
        """A caching function, the same one as long as the tree, and with it `priority`, is."""
        if tree is not self._tree:
            self._tree, self._traits = tree, _remembering(tree, priority)
        return self._traits


def _remembering(tree: Tree, priority: Priority) -> TraitsOf:
    remembered: dict[tuple[JobId, int], Traits] = {}

    def traits(job: Job, memory_mib: int) -> Traits:
        known = remembered.get((job.id, memory_mib))
        if known is None or known.job is not job:
            if len(remembered) >= REMEMBERED:
                remembered.clear()
            known = remembered[job.id, memory_mib] = _traits(job, memory_mib, tree, priority(job))
        return known

    return traits


def _traits(job: Job, memory_mib: int, tree: Tree, priority: float) -> Traits:
    mib, score = need_mib(job), packing.score(tree, job, memory_mib)
    utilization = job.profile.mean("gpu_utilization") if job.profile else None
    if not mib or score is None or utilization is None:
        aloof = Reason("unprofiled", detail="this job")
        return Traits(job, priority, mib, packing.SCORES["jumbo"], 1.0, aloof)
    return Traits(job, priority, mib, score, utilization, _unstable(job))


def _unstable(job: Job) -> Reason | None:
    if job.served_s > 0:
        return Reason("unstable", detail="this job")
    indicators = job.profile.indicators if job.profile else ()
    variance = max((each.variance for each in indicators if each.name in UTILIZATION), default=0.0)
    if variance > UNSTABLE:
        return Reason("unstable", UNSTABLE, variance, detail="this job")
    return None
