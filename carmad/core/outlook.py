"""Predicts for its owner when a job would start and end without sharing; policies do not use it.

List scheduling: those who wait take, in the order of the line, the GPUs that are free first, and
one that runs leaves its own when it is expected to end. A policy may do better by sharing, or
worse for this job by another order. Quotas, limits of arrays, and that a MIG instance is too little
for some are left out.
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
    """`line` has those who wait, the first one first; a job that is not there comes last."""
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
        ready_at, at = _ready_at(before, ends_at), _free_at(before, free_at)
        ends_at[before.id] = max(ready_at, at) + _at_most_s(before, now)
        if ready_at <= at and ready_at < inf:  # else those behind it go first
            _occupy(free_at, before.spec.gpus, ends_at[before.id])
    starts_at = max(_ready_at(job, ends_at), _free_at(job, free_at))
    return Outlook(starts_at, starts_at + _left_s(job, now))


def _ready_at(job: Job, ends_at: Mapping[JobId, float]) -> float:
    """When nothing but GPUs keeps it waiting. What it waits for and is in neither place has ended;
    when those end that are behind it in line, nobody can say."""
    if job.held:
        return inf
    waits_for = (ends_at.get(after.job, 0.0) for after in job.spec.after)
    return max(job.spec.begin_at or 0.0, *waits_for, 0.0)


def _free_at(job: Job, free_at: list[float]) -> float:
    return free_at[job.spec.gpus - 1] if job.spec.gpus <= len(free_at) else inf


def _occupy(free_at: list[float], gpus: int, until: float) -> None:
    """Give away those that are free first."""
    free_at[:gpus] = [until] * len(free_at[:gpus])
    free_at.sort()


def _takes_jobs(gpu: GpuView) -> bool:
    return gpu.drained is None and not (gpu.sample and gpu.sample.fault)


def _left_s(job: Job, now: float) -> float:
    """How long it goes on, as predicted; 0 when that is over."""
    return inf if job.expected_s is None else max(0.0, job.expected_s - job.attained_s(now))


def _at_most_s(job: Job, now: float) -> float:
    """Of others the time limit, too, says when they are gone."""
    limit_s = job.spec.time_limit_s
    left_s = _left_s(job, now)
    return left_s if limit_s is None else min(left_s, max(0.0, limit_s - job.attained_s(now)))
