"""Pairs whose GPU usage deviates from their profiles (Lucid paper, 3.3, rule 4)."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.plugin import GpuView, Job, NodeView, Preemption, Reason, View
from policies.lucid.traits import UNSTABLE

# The indicator that scores are based on.
PROFILED_AS: Mapping[str | None, str] = {
    "sm_active": "sm_active",
    "utilization": "gpu_utilization",
}


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
        and all(job.stop is None for job in gpu.residents)
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
