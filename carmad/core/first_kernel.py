"""Whether a job has run its first kernel on a GPU (CARMA paper, 3.2), by the GPU's readings."""

from __future__ import annotations

from collections.abc import Sequence

from carmad.config import Monitor, Settings
from carmad.core.types import GpuSample, Job, ProcessUse

RISE = 0.05  # of the GPU's activity, beyond all readings of the last window: a new load
STEADY = 0.01  # relative change of memory over a window that still counts as none

Reading = tuple[GpuSample, float]  # with the seconds that it covers


def ran(job: Job, readings: Sequence[Reading], alone: bool, settings: Settings) -> bool:
    """`readings` are the window's, the latest one last; `alone`: no other job is on the GPU.

    The driver may not say which process keeps a GPU busy: it may blame the MPS server for all of
    its clients, and on some GPUs it says nothing. Being there proves nothing then, as a job has a
    context long before its first kernel. It has run one if the GPU is busy and either its activity
    has risen, or, since a neighbour may hide that, the job holds more memory than a context takes,
    and has held the same for a window. Whose rise it is, and whether steady memory waits for data,
    cannot be told.
    """
    latest = readings[-1][0]
    own = _processes(job, latest)
    if any(process.sm_util for process in own):
        return True
    if all(process.sm_util is not None for process in own):
        return False
    activity = latest.activity
    if activity is None:
        return _memory(job, latest) is None or _steady(job, readings, settings)
    if activity == 0:
        return False
    unshared = alone and not _other_load(job, latest, settings.monitor)
    before = 0.0 if unshared else _highest_before(readings)
    return activity >= before + RISE or _steady(job, readings, settings)


def _other_load(job: Job, sample: GpuSample, monitor: Monitor) -> bool:
    """Whether another process may be what keeps the GPU busy. Small ones do not count: the MPS
    server is one, and has its clients' utilisation."""
    own = _processes(job, sample)
    return any(
        process.sm_util != 0.0
        and (process.memory_mib is None or process.memory_mib > monitor.external_mib)
        for process in sample.processes
        if process not in own
    )


def _highest_before(readings: Sequence[Reading]) -> float:
    """The highest earlier activity in the latest reading's metric; 1 if there is none, as nothing
    rises above that."""
    metric = "utilization" if readings[-1][0].sm_active is None else "sm_active"
    earlier = (getattr(sample, metric) for sample, _ in readings[:-1])
    return max((value for value in earlier if value is not None), default=1.0)


def _steady(job: Job, readings: Sequence[Reading], settings: Settings) -> bool:
    """Whether it has held more than a bare context for a whole window, without allocating or
    freeing memory."""
    monitor, context_mib = settings.monitor, settings.estimation.context_mib
    seconds = sum(seconds for _, seconds in readings)
    held = [_memory(job, sample) for sample, _ in readings]
    known = [mib for mib in held if mib is not None]
    if len(known) < len(held) or seconds <= monitor.window_s - monitor.period_s:
        return False
    return min(known) > context_mib and max(known) - min(known) <= STEADY * max(known)


def _memory(job: Job, sample: GpuSample) -> int | None:
    """What its processes hold, in MiB, or all processes if that is not reported; None: unknown, or
    it is not there."""
    own = _processes(job, sample)
    if not own:
        return None
    known = [each.memory_mib for each in own if each.memory_mib is not None]
    return sum(known) if len(known) == len(own) else sample.memory_used_mib


def _processes(job: Job, sample: GpuSample) -> list[ProcessUse]:
    """Of its current attempt."""
    attempts = (job.attempt, None)
    return [p for p in sample.processes if p.job == job.id and p.attempt in attempts]
