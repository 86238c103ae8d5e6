"""Predicts for its owner when a job would start and end without sharing; policies do not use it.

List scheduling: waiting jobs take, in queue order, the GPUs that are free first, and running jobs
release theirs when they are expected to end. A policy may do better by sharing, or worse for this
job by another order. Quotas, array limits, the host's CPUs and memory, and the small memory of MIG
instances are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from carmad.core.gpuview import GpuView
from carmad.core.types import Job, JobId


@dataclass(frozen=True, slots=True)
class Outlook:
    """Infinite means unknown."""

    starts_at: float
    ends_at: float


def outlook(job: Job, line: Iterable[Job], gpus: Iterable[GpuView], now: float) -> Outlook:
    """`line` has the waiting jobs in order; a job that is not in it comes last."""
    if job.holds_gpus:
        return Outlook(job.started_at or now, now + _left_s(job, now))
    waiting, there = tuple(line), tuple(gpus)
    ends_at = dict.fromkeys((each.id for each in waiting), inf)
    ends_at |= {each.id: now + _at_most_s(each, now) for gpu in there for each in gpu.residents}
    free_at = sorted(
        max((ends_at[each.id] for each in gpu.residents), default=now)
        for gpu in there
        if _takes_jobs(gpu)
    )
    for before in takewhile(lambda each: each.id != job.id, waiting):
        ready_at, at = _ready_at(before, ends_at), _free_at(before, free_at, now)
        ends_at[before.id] = max(ready_at, at) + _at_most_s(before, now)
        if ready_at <= at and ready_at < inf:  # otherwise the jobs behind it go first
            _occupy(free_at, before.spec.gpus, ends_at[before.id])
    starts_at = max(_ready_at(job, ends_at), _free_at(job, free_at, now))
    return Outlook(starts_at, starts_at + _left_s(job, now))


def _ready_at(job: Job, ends_at: Mapping[JobId, float]) -> float:
    """When it waits for nothing but GPUs. A dependency that neither waits nor runs has ended; the
    end of one that is behind it in line is unknown."""
    if job.held:
        return inf
    waits_for = (ends_at.get(after.job, 0.0) for after in job.spec.after)
    return max(job.spec.begin_at or 0.0, *waits_for, 0.0)


def _free_at(job: Job, free_at: list[float], now: float) -> float:
    if not job.spec.gpus:
        return now
    return free_at[job.spec.gpus - 1] if job.spec.gpus <= len(free_at) else inf


def _occupy(free_at: list[float], gpus: int, until: float) -> None:
    """Occupy the GPUs that become free first."""
    free_at[:gpus] = [until] * len(free_at[:gpus])
    free_at.sort()


def _takes_jobs(gpu: GpuView) -> bool:
    return gpu.drained is None and not (gpu.sample and gpu.sample.fault)


def _left_s(job: Job, now: float) -> float:
    """Its predicted remaining run time; 0 when it has run longer than predicted."""
    return inf if job.expected_s is None else max(0.0, job.expected_s - job.attained_s(now))


def _at_most_s(job: Job, now: float) -> float:
    """Another job's remaining run time, which its time limit bounds as well."""
    limit_s = job.spec.time_limit_s
    left_s = _left_s(job, now)
    return left_s if limit_s is None else min(left_s, max(0.0, limit_s - job.attained_s(now)))
