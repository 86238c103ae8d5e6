"""Who is suspended so that others can run: where a shared GPU's memory is about to be full, and,
where `limits.preemption` is "suspend", for a reservation that has begun, for urgent jobs, and for
jobs at a terminal, whose owners wait there.

A job that grows stops growing as soon as it is locked, long before it is gone. So it can always be
suspended in time, and a neighbour only if enough time is left to move its memory; of those, the
one with the least memory is. The job that grew, and would grow again, is to be alone, as after the
crash that was averted (CARMA paper, 3.5), until its memory is steady; a neighbour returns
elsewhere.

GPUs are freed of all their jobs, so that any policy places the next one there. Nobody is suspended
for a job that GPUs are being freed for already. Whoever was suspended waits in line like all
others, and two jobs cannot take turns without end: see `suspending.refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from math import inf
from typing import Literal

from carmad.core.gpus.gpu import GpuSample, held_mib
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.readings import is_steady
from carmad.core.jobs import suspending
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.control import never
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Sampled
from carmad.core.placing.view import View
from carmad.core.state import State

FULL = "its GPU's memory was about to be full"


def waiting(state: State) -> list[JobId]:
    """The jobs in line for which others are suspended."""
    line = zip(state.ledger.places(), state.ledger.line(), strict=True)
    first = takewhile(lambda each: not (each[0][0] and each[0][1]), line)
    return [job.id for place, job in first if not place[1]]


def is_needed(state: State, now: float) -> bool:
    """Whether anybody may be in the way of others."""
    first = state.settings.limits.preemption == "suspend" and waiting(state)
    return bool(first) or any(each.is_on(now) for each in state.fleet.reservations.values())


def relieve(state: State, view: View) -> None:
    """Suspend who is in the way, after the policy has placed whom it could."""
    chosen: dict[JobId, str] = {}
    may = view.settings.limits.preemption == "suspend"
    for gpu, job, whose in chain.from_iterable(map(_out_of_place, view.gpus)):
        if may and (job.spec.requeue_ok or not never(job, view.settings)):
            chosen[job.id] = f"for a reservation ({whose})"
        else:
            where = f"GPU {gpu.gpu.index}, which is now reserved ({whose})"
            state.ledger.note(job.id, f"is still on {where}; it is not stopped for that")
    taken: set[GpuId] = set()
    wait = set(waiting(state)) if may else set()
    for job in view.queue:
        if job.id in wait:
            victims, lack_mib = _victims(state, job, view, taken)
            chosen = {each.id: f"for job {job.id}" for each in victims} | chosen
            if lack_mib:
                _make_room(state, job, lack_mib, view.now)
    for id, why in chosen.items():
        suspending.preempt(state, state.ledger.jobs[id], why, view.now)


def _make_room(state: State, job: Job, mib: int, now: float) -> None:
    """For so much on the host, so that others can be suspended for the job; it is told who is
    in the way."""
    if largest := suspending.largest(state):
        state.ledger.note(
            job.id,
            "no job is suspended for it while the host's memory for that is taken, mostly by"
            f" suspended job {largest.id} of {largest.spec.user}",
        )
    suspending.make_room(state, mib, f"job {job.id}", now)


def avert(state: State, event: Sampled) -> None:
    """Suspend a job on each shared GPU whose memory, by its last readings, would be full before
    the next one was acted on. A job that is alone because it grew, and grows no more, need not
    be any longer."""
    if not state.settings.suspend.host_memory_mib:
        return
    for sample in event.samples:
        residents = [j for j in state.ledger.residents(sample.gpu) if not j.leaves]
        if len(residents) == 1:
            _share_again(state, residents[0], sample.gpu)
        growth = (
            state.fleet.growth(sample.gpu, state.settings.monitor) if len(residents) > 1 else {}
        )
        rate = sum(growth.values())
        if rate <= 0 or sample.memory_free_mib is None or _fit(residents, sample):
            continue
        full_in_s = max(0.0, sample.memory_free_mib / rate)
        growing = max(residents, key=lambda job: growth.get(job.id, 0.0))
        if job := _cheapest(state, residents, growing, sample, full_in_s, event.at):
            after: Literal["alone", "elsewhere"] = "alone" if job is growing else "elsewhere"
            suspending.suspend(state, job, FULL, event.at, after=after)


def _share_again(state: State, job: Job, gpu: GpuId) -> None:
    """Once its memory has been the same for a window, what it needs is known."""
    grew = job.retry is not None and job.retry.exclusive and job.retry.why == FULL
    if (
        grew
        and job.state is JobState.RUNNING
        and is_steady(job, state.fleet.readings(gpu), state.settings)
    ):
        state.ledger.put(replace(job, retry=None))


def _cheapest(
    state: State,
    residents: Sequence[Job],
    growing: Job,
    sample: GpuSample,
    full_in_s: float,
    now: float,
) -> Job | None:
    """The job to suspend now; None: there is time, or none can be."""
    settings = state.settings
    for job in sorted(residents, key=lambda job: held_mib(job.id, sample)):
        if suspending.refusal(state, job, now):
            continue
        moved_mib = 0 if job is growing else held_mib(job.id, sample)
        takes_s = settings.suspend.fixed_s + moved_mib / settings.suspend.out_mib_s
        if takes_s <= full_in_s or job is growing:
            return job if full_in_s <= takes_s + settings.monitor.period_s else None
    return None


def _victims(state: State, job: Job, view: View, taken: set[GpuId]) -> tuple[list[Job], int]:
    """The jobs to suspend for this one: those on the GPUs of a node that are cheapest to free.
    These are added to `taken`. None if that would not help; and the memory in MiB that the host
    would have to have for the least of them, if that is all that is missing."""
    least_mib = 0
    for node in view.nodes:
        able = [gpu for gpu in node.gpus if gpu.id not in taken and _frees(state, gpu, job, view)]
        able.sort(key=lambda gpu: _moved_mib(state, [gpu]))
        its = able[: job.spec.gpus]
        moved_mib = _moved_mib(state, its)
        if len(its) < job.spec.gpus:
            continue
        if moved_mib <= suspending.host_room_mib(state):
            taken.update(gpu.id for gpu in its)
            return [each for gpu in its for each in gpu.residents], 0
        least_mib = min(least_mib or moved_mib, moved_mib)
    return [], least_mib


def _frees(state: State, gpu: GpuView, job: Job, view: View) -> bool:
    """Whether the GPU could take the job without those that are there, and they can go if the
    host has room."""
    empty_mib = gpu.gpu.memory_mib - gpu.external_mib
    empty = replace(gpu, residents=(), settling=None, free_mib=empty_mib)
    if (job.need and job.need.safe_mib > empty_mib) or view.refusals(view.demand(job), empty):
        return False
    way = partial(suspending.way_to_preempt, state, now=view.now, room=True)
    return all(
        each.leaves or (not _goes_first(state, each) and way(each)) for each in gpu.residents
    )


def _moved_mib(state: State, gpus: Iterable[GpuView]) -> int:
    """What is to be moved to the host to free them: of each job all, also from other GPUs."""
    stay = {job.id: job for gpu in gpus for job in gpu.residents if not job.leaves}
    return sum(sum(state.fleet.memory_of(job).values()) for job in stay.values())


def _goes_first(state: State, job: Job) -> bool:
    usual, _ = state.ledger.standing(job)
    return not usual


def _fit(residents: Iterable[Job], sample: GpuSample) -> bool:
    """Whether the GPU has room for all that these jobs are expected to take."""
    free_mib = float(sample.memory_free_mib or 0)
    for job in residents:
        need_mib = job.need.safe_mib if job.need else inf
        free_mib -= max(0.0, need_mib - held_mib(job.id, sample))
    return free_mib >= 0


def _out_of_place(gpu: GpuView) -> Iterator[tuple[GpuView, Job, str]]:
    """The jobs that are where a reservation for others has begun, and whose that is."""
    for slot in gpu.reserved:
        for job in gpu.residents:
            if not slot.in_s and not slot.of.admits(job.spec.owner):
                yield gpu, job, slot.of.whose
