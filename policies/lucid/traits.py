"""What decides how a job is packed, worked out once per version of the job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from carmad.plugin import Job, JobId, Reason, Tree
from policies.lucid import packing
from policies.memory import need_mib

# What "an unstable resource utilization pattern" (Lucid paper, 3.3, rule 4) is, the paper does not
# say. Here it is a utilisation (0–1) whose standard deviation is beyond 0.3: it swings between idle
# and busy. A job that was evicted for it once stays alone.
UNSTABLE = 0.3**2
UTILIZATION = ("gpu_utilization", "memory_utilization")
REMEMBERED = 16_384  # jobs


class Traits(NamedTuple):
    job: Job  # this version of it
    priority: float  # GPUs × predicted duration, GPU-seconds; the lowest goes first
    need_mib: int  # of each GPU's memory
    score: int  # sharing score, 0 to 2
    aloof: Reason | None  # why it shares with nobody, said of "this job"


Priority = Callable[[Job], float]
TraitsOf = Callable[[Job, int], Traits]  # on GPUs of so much memory, in MiB


def service(job: Job) -> float:
    """Algorithm 2, line 4. A job of which nobody knows how long it takes goes last."""
    return math.inf if job.expected_s is None else job.spec.gpus * job.expected_s


class Known:
    """Remembers traits. That a job is still the same version is told by its identity: to compare
    two takes longer than to work the traits out anew."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._traits: TraitsOf

    def traits(self, tree: Tree, priority: Priority) -> TraitsOf:
        """The same function as long as the tree is the same; so must `priority` be."""
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
    aloof = _unstable(job) if mib and score is not None else Reason("unprofiled")
    return Traits(job, priority, mib, packing.SCORES["jumbo"] if score is None else score, aloof)


def _unstable(job: Job) -> Reason | None:
    if job.served_s > 0:
        return Reason("unstable")
    indicators = job.profile.indicators if job.profile else ()
    variance = max((each.variance for each in indicators if each.name in UTILIZATION), default=0.0)
    return Reason("unstable", UNSTABLE, variance) if variance > UNSTABLE else None
