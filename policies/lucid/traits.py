"""The properties of a job that packing depends on, and which packed jobs turn out to lack them.

Sharing scores say how much two jobs that share slow each other down (Lucid paper, 3.2 and 3.5.1):
the Packing Analyze Model classifies a job as Tiny, Medium or Jumbo by its profile. It is the model
trained here, if there is one, or else the one shipped with CARMA. Pairs whose GPU usage deviates
from their profiles are split again (3.3, rule 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from carmad.plugin import GpuView, Job, JobId, NodeView, Preemption, Reason, Tree, View
from policies.views import need_mib

MODEL = "packing"  # of the trained model
SCORES = {"tiny": 0, "medium": 1, "jumbo": 2}
WORDS = ("Tiny", "Medium", "Jumbo")  # by score

# The paper does not define "an unstable resource utilization pattern" (Lucid paper, 3.3, rule 4).
# Here it is a utilisation (0–1) whose standard deviation exceeds 0.3: it swings between idle and
# busy. A job that was evicted for it stays alone from then on.
UNSTABLE = 0.3**2
UTILIZATION = ("gpu_utilization", "memory_utilization")
REMEMBERED = 16_384  # jobs

# The indicator that scores are based on.
PROFILED_AS: Mapping[str | None, str] = {
    "sm_active": "sm_active",
    "utilization": "gpu_utilization",
}


def sharing_score(tree: Tree, job: Job, memory_mib: int) -> int | None:
    """The sharing score on a GPU with this much memory; None if the profile lacks what it needs.

    With a value missing, a tree follows most of its training jobs. That would be a guess, and
    packing is a risk: the profile must have all the values that the tree uses. It does not if the
    job ran no kernel while it was profiled, or on a MIG instance, for which NVML reports no
    utilisation. SMACT cannot replace it: it is lower, so every job would look Tiny.
    """
    if job.profile is None:
        return None
    values = {each.name: each.mean for each in job.profile.indicators}
    values["amp"] = float(job.spec.amp)
    if job.profile.peak_mib:
        values["memory_share"] = job.profile.peak_mib / memory_mib
    asked = {tree.features[node.feature] for node in tree.nodes if node.feature >= 0}
    return SCORES[tree.predict(values)] if asked <= values.keys() else None


class Traits(NamedTuple):
    job: Job  # this version of it
    priority: float  # GPUs × predicted duration, GPU-seconds; lowest first
    need_mib: int  # memory on each GPU
    score: int  # sharing score, 0 to 2
    utilization: float  # of the GPU while it ran alone, 0–1
    aloof: Reason | None  # why it does not share, with "this job" as its detail


Priority = Callable[[Job], float]
TraitsOf = Callable[[Job, int], Traits]  # for GPUs with this much memory, in MiB


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
    mib, score = need_mib(job), sharing_score(tree, job, memory_mib)
    utilization = job.profile.mean("gpu_utilization") if job.profile else None
    if not mib or score is None or utilization is None:
        aloof = Reason("unprofiled", detail="this job")
        return Traits(job, priority, mib, SCORES["jumbo"], 1.0, aloof)
    return Traits(job, priority, mib, score, utilization, _unstable(job))


def _unstable(job: Job) -> Reason | None:
    if job.served_s > 0:
        return Reason("unstable", detail="this job")
    indicators = job.profile.indicators if job.profile else ()
    variance = max((each.variance for each in indicators if each.name in UTILIZATION), default=0.0)
    if variance > UNSTABLE:
        return Reason("unstable", UNSTABLE, variance, detail="this job")
    return None


def evictions(view: View) -> tuple[Preemption, ...]:
    """Evicts the later job of each such pair. It does not share again."""
    if not view.settings.limits.preemption:
        return ()
    found: dict[int, Preemption] = {}
    for node in view.nodes:
        for gpu in node.memo.recall(_pairs_on, _pairs_on, node):
            deviation = gpu.memo.recall(_deviation, _deviation, gpu)
            if deviation > UNSTABLE and (job := _to_go(gpu)):
                reason = Reason("unstable", UNSTABLE, deviation, detail=f"job {job.id}")
                found.setdefault(job.id, Preemption(job.id, reason))
    return tuple(found.values())


def _pairs_on(node: NodeView) -> tuple[GpuView, ...]:
    return tuple(
        gpu
        for gpu in node.gpus
        if len(gpu.residents) > 1
        and gpu.settling is None
        and not any(job.leaves for job in gpu.residents)
    )


def _deviation(gpu: GpuView) -> float:
    """The square of how much busier the GPU recently was than the sum of its jobs' profiles: a
    variance about the prediction. Being less busy is normal for jobs that slow each other down."""
    score = gpu.score
    name = PROFILED_AS.get(score.sm_source)
    profiles = [job.profile for job in gpu.residents if job.profile]
    means = [mean for each in profiles if name and (mean := each.mean(name)) is not None]
    if len(means) < len(gpu.residents):
        return 0.0  # unknown
    return max(0.0, score.sm_mean - sum(means)) ** 2


def _to_go(gpu: GpuView) -> Job | None:
    may_go = [job for job in gpu.residents if job.spec.requeue]
    return max(may_go, key=lambda job: (job.started_at or 0.0, job.id), default=None)
