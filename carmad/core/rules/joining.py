"""Which jobs may join a GPU that settles: what is known of a job and of the residents need not be
waited for.

A resident tells what jobs of its own group need once it computes: those are the tasks of a sweep,
or runs of one command by one user, which would suffer most if it were wrong. For anybody else's
jobs, its memory is known as in the paper: after a window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carmad.config import Monitor, Settings
from carmad.core.gpus.gpuview import GpuView, computes_since
from carmad.core.gpus.readings import uses_gpu
from carmad.core.jobs.job import Job

ASSUMED_ACTIVITY = 0.6  # of a job that has never been measured
MOST_ACTIVITY = 1.0  # of a GPU, with the job that joins
GROWTH = 1.25  # the memory of a job that has computed for some seconds only may still grow by this
OWN_MEMORY = "the memory of this job is not known"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job before it runs."""

    mib: int  # memory per GPU: declared, estimated or measured in earlier runs; 0: unknown
    activity: float | None
    group: str


def knowledge(job: Job) -> Known:
    """Nothing is known of the memory of a job that has just run out of it."""
    mib = max(job.need.safe_mib if job.need else 0, job.profile.peak_mib if job.profile else 0)
    if job.suspension:
        mib = job.suspension.gpu_mib
    return Known(
        0 if job.retry else mib,
        job.profile.activity if job.profile else None,
        "" if job.retry else job.group,
    )


def find_unknown(known: Known, gpu: GpuView, monitor: Monitor) -> str:
    """Say whose memory is not known; "" if all of it is."""
    alike = _seen_mib(known, gpu)
    if not (known.mib or alike):
        return OWN_MEMORY
    for job in gpu.residents:
        if not (_resident_mib(job, gpu, monitor) or (alike and job.group == known.group)):
            return f"the memory of job {job.id} is not known"
    return ""


def find_excess(known: Known, gpu: GpuView, settings: Settings) -> str:
    """Say what there may be too much of, where all memory is known; "" if nothing."""
    alike = _seen_mib(known, gpu)
    free_mib = gpu.free_mib
    for job in gpu.residents:
        its_mib = _resident_mib(job, gpu, settings.monitor) or alike
        free_mib -= max(0, its_mib - gpu.counted_mib(job))
    most_mib = max(map(gpu.held_mib, _alike(known, gpu)), default=0)
    if (max(known.mib, most_mib) if known.mib else alike) > free_mib:
        return "there may be too little memory for this job"
    shown = find_load(gpu, settings.monitor)
    if shown is None:
        return "its load is not known yet"
    each = shown / len(gpu.residents)
    load = sum(_activity(job, gpu, each) for job in gpu.residents)
    same = [_activity(job, gpu, each) for job in _alike(known, gpu)]
    more = max(same, default=ASSUMED_ACTIVITY) if known.activity is None else known.activity
    if load >= settings.risk.sm_active or load + more > MOST_ACTIVITY:
        return "it may be too busy with this job"
    return ""


def find_load(gpu: GpuView, monitor: Monitor) -> float | None:
    """The activity there in the last seconds in which all residents computed; None: it is not
    known."""
    if gpu.sample is None:
        return None
    latest = max((computes_since(job, gpu.id) or 0.0 for job in gpu.residents), default=0.0)
    return gpu.recent.activity(max(latest, gpu.sample.at - monitor.known_s))


def _alike(known: Known, gpu: GpuView) -> Iterable[Job]:
    """The residents of its group that have run a kernel and train with whole batches."""
    return (
        job
        for job in gpu.residents
        if known.group and job.group == known.group
        if job.accumulation == 1 and computes_since(job, gpu.id) is not None
    )


def _seen_mib(known: Known, gpu: GpuView) -> int:
    """What a job of the group may take at most, by those that are there; 0: none is, or it cannot
    be read."""
    return round(GROWTH * max(map(gpu.held_mib, _alike(known, gpu)), default=0))


def _resident_mib(job: Job, gpu: GpuView, monitor: Monitor) -> int:
    """0: unknown, as is what takes more than was said of it."""
    mib, since, held_mib = knowledge(job).mib, computes_since(job, gpu.id), gpu.held_mib(job)
    if gpu.sample and since is not None and gpu.sample.at - since >= monitor.window_s:
        return max(mib, held_mib)
    return mib if held_mib <= mib else 0


def _activity(job: Job, gpu: GpuView, measured: float) -> float:
    """The larger of what is known, or assumed while it does not show, and its part of what is
    measured."""
    known = knowledge(job).activity
    if known is None:
        known = 0.0 if gpu.sample and uses_gpu(job, gpu.sample) else ASSUMED_ACTIVITY
    return max(known, measured)
