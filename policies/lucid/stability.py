"""Pairs that use their GPU otherwise than they were profiled to (Lucid paper, 3.3, rule 4)."""

from __future__ import annotations

from carmad.plugin import GpuView, Job, NodeView, Preemption, Reason, View
from policies.lucid.traits import UNSTABLE

PROFILED_AS = {"sm_active": "sm_active", "utilization": "gpu_utilization"}  # by a score's source


def evictions(view: View) -> tuple[Preemption, ...]:
    """One of each such pair: the one that came later. It shares with nobody after that."""
    if not view.settings.limits.preemption:
        return ()
    found: dict[int, Preemption] = {}
    for node in view.nodes:
        for gpu in node.known.recall(_pairs_on, _pairs_on, node):
            deviation = gpu.known.recall(_deviation, _deviation, gpu)
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
        and all(job.stop is None for job in gpu.residents)
    )


def _deviation(gpu: GpuView) -> float:
    """The square of how much busier the GPU was lately than its jobs' profiles add up to: a
    variance about what was foretold. To be less busy is what jobs do that slow each other."""
    score = gpu.score
    name = PROFILED_AS.get(score.sm_source or "")
    means = [job.profile.mean(name) if job.profile and name else None for job in gpu.residents]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        return 0.0
    return max(0.0, score.sm_mean - sum(known)) ** 2


def _to_go(gpu: GpuView) -> Job | None:
    may_go = [job for job in gpu.residents if job.spec.requeue]
    return max(may_go, key=lambda job: (job.started_at or 0.0, job.id), default=None)
