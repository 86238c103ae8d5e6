"""What each job is guaranteed of a GPU's memory, and how much it may use, where the driver enforces
both (`Gpu.guarantees`) and `collocation.guarantee_memory` is on.

A job is guaranteed what it was promised: its declared memory, or else its estimate. It may use what
nobody else there is guaranteed, so one that is alone may use all of it. Limits therefore change
when a job comes, goes, is suspended or gets another estimate, and hardly ever because of a reading:
these are rounded to steps, external processes count with the least that they held within the
window, and a job's own memory with the most that it held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from carmad.core.gpus.gpu import GpuSample, held_mib
from carmad.core.gpus.gpuview import promise_mib
from carmad.core.jobs.attempt import GpuId, JobId, MemoryLimits
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Event, LimitMemory, Sampled
from carmad.core.rules.promises import STEP_MIB
from carmad.core.state import State


@dataclass(frozen=True, slots=True)
class Claim:
    """What one job's limits on a GPU depend on."""

    promised_mib: int  # 0: nothing, as its need is not known
    firm: bool = False  # whatever it has used so far
    held_mib: int = 0  # now
    peak_mib: int = 0  # at most so far
    placed_at: float = 0.0


def share_out(
    claims: Sequence[Claim], total_mib: int, external_mib: int
) -> tuple[tuple[int, int], ...]:
    """For each claim, what is guaranteed to it, and what it may use at most. The guaranteed parts
    together are no more than the GPU has, and nobody's limit is below what they hold.

    If more was promised than there is, everybody keeps what they have used of their promise; of
    the rest, firm promises come first, and then the latest: that job was placed by what the earlier
    ones were seen to hold.
    """
    room_mib = left_mib = max(0, total_mib - external_mib)
    given = [0] * len(claims)
    order = sorted(range(len(claims)), key=lambda n: claims[n].placed_at)
    firm = [n for n in order if claims[n].firm]
    others = [n for n in reversed(order) if not claims[n].firm]
    wishes = [(n, min(claims[n].promised_mib, _down(claims[n].peak_mib))) for n in order]
    wishes += [(n, claims[n].promised_mib) for n in (*firm, *others)]
    for n, wish_mib in wishes:
        more_mib = min(wish_mib - given[n], left_mib)
        given[n] += more_mib
        left_mib -= more_mib
    return tuple(
        (its, max(_up(claim.held_mib), room_mib - (sum(given) - its)))
        for its, claim in zip(given, claims, strict=True)
    )


def renew_limits(state: State, events: Iterable[Event]) -> list[LimitMemory]:
    """Change the limits of jobs on GPUs that have been sampled, or whose jobs have changed.
    Lower limits come first: what they free is promised to others."""
    if not state.fleet.guarantees:
        return []
    changed = (*state.ledger.changes(), *state.ledger.before())
    on = state.settings.collocation.guarantee_memory
    readings = (each.samples for each in events if isinstance(each, Sampled))
    sampled = (sample.gpu for samples in readings for sample in samples)
    gpus = dict.fromkeys((*sampled, *(gpu for job in changed for gpu in job.gpus)))
    new: dict[JobId, dict[GpuId, MemoryLimits]] = {}
    for gpu in gpus:
        for job, its in _limits_on(state, gpu, on):
            new.setdefault(job.id, {})[gpu] = its
    for job in changed:
        if job.lives:
            new.setdefault(job.id, {})
    lowered, others = list[LimitMemory](), list[LimitMemory]()
    for id, by_gpu in new.items():
        now = state.ledger.jobs.get(id)  # None: it has ended
        if now and now.lives and (limits := _limits_of(now, by_gpu)) != now.current.memory_limits:
            limited = now.with_attempt(memory_limits=limits)
            state.ledger.put(limited)
            is_lower = _is_lower(limits, now.current.memory_limits)
            (lowered if is_lower else others).append(LimitMemory(limited))
    return lowered + others


def _limits_on(state: State, id: GpuId, on: bool) -> list[tuple[Job, MemoryLimits]]:
    """The limits of the GPU's residents; empty if none has limits or is to get any."""
    gpu, residents = state.fleet.gpus.get(id), state.ledger.residents(id)
    if gpu is None:
        return []
    if not (on and gpu.guarantees):
        return [(job, MemoryLimits(id)) for job in residents if job.current.memory_limits]
    claims = [_claim(state, job, id) for job in residents]
    external_mib = _down(state.fleet.external_mib(id, residents))
    shares = share_out(claims, gpu.memory_mib, external_mib)
    return [
        (job, MemoryLimits(id, guaranteed_mib, most_mib))
        for job, (guaranteed_mib, most_mib) in zip(residents, shares, strict=True)
    ]


def _claim(state: State, job: Job, gpu: GpuId) -> Claim:
    promised_mib = promise_mib(job, settled=False)
    if promised_mib and job.retry:
        promised_mib += job.retry.margin_mib
    readings = state.fleet.readings(gpu)
    return Claim(
        promised_mib,
        job.state is JobState.RESUMING or bool(job.need and job.need.firm),
        _held_mib(job, readings[-1][0]) if readings else 0,
        state.fleet.with_usage(job).usage.peak_mib,
        inf if job.started_at is None else job.started_at,
    )


def _held_mib(job: Job, sample: GpuSample) -> int:
    """Where the GPU does not report memory per process, all of it may be the job's."""
    if any(process.memory_mib is None for process in sample.processes):
        return sample.memory_used_mib or 0
    return held_mib(job.id, sample)


def _limits_of(job: Job, new: dict[GpuId, MemoryLimits]) -> tuple[MemoryLimits, ...]:
    """The job's limits with the `new` ones. Those of GPUs that it has left are lifted."""
    limits = {each.gpu: each for each in job.current.memory_limits} | new
    return tuple(
        each if gpu in job.gpus else MemoryLimits(gpu) for gpu, each in sorted(limits.items())
    )


def _is_lower(new: Iterable[MemoryLimits], old: Iterable[MemoryLimits]) -> bool:
    """Whether the job may use less than before on some GPU, or is guaranteed less."""
    was = {each.gpu: each for each in old}
    return any(
        each.guaranteed_mib < before.guaranteed_mib or _most(each) < _most(before)
        for each in new
        if (before := was.get(each.gpu))
    )


def _most(limits: MemoryLimits) -> float:
    return inf if limits.most_mib is None else limits.most_mib


def _down(mib: int) -> int:
    return mib - mib % STEP_MIB


def _up(mib: int) -> int:
    return _down(mib + STEP_MIB - 1)
