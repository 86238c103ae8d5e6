"""What a GPU's readings say of the jobs on it: what they use, how they load a GPU alone, and
whether they have run a kernel.

A reading describes the time since the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse, held_mib, uses_gpu
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.findings import Indicator, Profile, Usage
from carmad.core.jobs.job import Job

FAINT = 0.01  # utilisation that a context without kernels may show for a moment (an H100's did)
RISE = 0.05  # of the GPU's activity, beyond all readings of the last window: a new load
STEADY = 0.01  # relative change of memory over a window that still counts as none
Reading = tuple[GpuSample, float]  # with the seconds that it covers


def failed_gpu(
    job: Job, gpus: Mapping[GpuId, Gpu], last: Callable[[GpuId], GpuSample | None]
) -> str:
    """The first of the job's GPUs that does not work, by its `last` reading, and why; "" if all do,
    or none are known."""
    for id in job.gpus if gpus else ():
        if id not in gpus:
            return f"a GPU of the job failed: {id} is no longer there"
        sample = last(id)
        if sample and sample.fault:
            return f"GPU {gpus[id].index} failed: {sample.fault}"
    return ""


def memory_of(job: Job, samples: Iterable[GpuSample | None]) -> dict[GpuId, int]:
    """MiB that the job holds on each of its GPUs, by their readings, without those that cannot be
    read. Where a GPU does not report memory per process, all that is used there may be the job's.
    """
    return {
        sample.gpu: held_mib(job.id, sample) or sample.memory_used_mib or 0
        for sample in samples
        if sample and not sample.fault and sample.gpu in job.gpus
    }


def meter(
    usage: Mapping[JobId, Usage],
    residents: tuple[Job, ...],
    before: GpuSample | None,
    sample: GpuSample,
    max_gap_s: float,
) -> dict[JobId, Usage]:
    """The usage of the `residents` of one GPU after `sample`; `before` is the previous sample.

    A GPU's energy is split evenly: the driver counts it per GPU, never per process. Nothing is
    counted across a gap in the samples.
    """
    seconds = sample.at - before.at if before else 0.0
    if not 0 < seconds <= max_gap_s:
        seconds = 0.0
    joules = energy_j(before, sample, seconds)
    busy = sample.activity or 0.0
    paired_s = 0.0
    if before and len(residents) == 2 and sample.sm_active is not None:
        paired_s = seconds * all(_had_run_by(before.at, job, sample) for job in residents)
    changed = {}
    for job in residents:
        held = held_mib(job.id, sample)
        old = usage.get(job.id, job.usage)
        changed[job.id] = Usage(
            peak_mib=max(old.peak_mib, held),
            energy_j=old.energy_j + joules / len(residents),
            sm_seconds=old.sm_seconds + busy * seconds,
            gpu_seconds=old.gpu_seconds + seconds,
            idle_seconds=old.idle_seconds + (0.0 if uses_gpu(job.id, sample) else seconds),
            paired_seconds=old.paired_seconds + paired_s,
            paired_sm_seconds=old.paired_sm_seconds + busy * paired_s,
        )
    return changed


def energy_j(before: GpuSample | None, sample: GpuSample, seconds: float) -> float:
    """Joules between two samples: the counter's difference, or power × time after a reset."""
    if before is None or seconds == 0:
        return 0.0
    if sample.energy_mj is not None and before.energy_mj is not None:
        used = sample.energy_mj - before.energy_mj
        if used >= 0:
            return used / 1000
    return (sample.power_w or 0.0) * seconds


# -- profiles
@dataclass(slots=True)
class _Sums:
    """Time-weighted sums of one indicator."""

    seconds: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def add(self, value: float, seconds: float) -> None:
        self.seconds += seconds
        off = value - self.mean
        self.mean += off * seconds / self.seconds
        self.squares += seconds * off * (value - self.mean)


@dataclass(slots=True)
class _Watched:
    gpu_seconds: float = 0.0
    indicators: dict[str, _Sums] = field(default_factory=dict)


class UsageProfiler:
    """Profiles jobs that have their GPUs to themselves, without touching them, until they are
    forgotten. All GPUs of a job count together. It starts from zero after a restart."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Watched] = {}

    def add(
        self, residents: tuple[Job, ...], before: GpuSample | None, sample: GpuSample, gap_s: float
    ) -> None:
        """Add a reading of a GPU; it counts only if it follows `before` by at most `gap_s`."""
        if len(residents) != 1 or before is None or residents[0].profiled:
            return
        job, seconds = residents[0], sample.at - before.at
        if not 0 < seconds <= gap_s or not _had_run_by(before.at, job, sample):
            return
        watched = self._jobs.setdefault(job.id, _Watched())
        watched.gpu_seconds += seconds
        for name, value in sample.indicators():
            watched.indicators.setdefault(name, _Sums()).add(value, seconds)

    def seconds(self, job: Job) -> float:
        """For how long the job has been watched, per GPU."""
        watched = self._jobs.get(job.id)
        return watched.gpu_seconds / len(job.gpus) if watched and job.gpus else 0.0

    def profile(self, job: Job, peak_mib: int) -> Profile:
        """The job's profile so far."""
        seconds = self.seconds(job)
        watched = self._jobs.get(job.id, _Watched())
        indicators = (
            Indicator(name, sums.mean, sums.squares / sums.seconds)
            for name, sums in sorted(watched.indicators.items())
        )
        return Profile(seconds, peak_mib, tuple(indicators))

    def forget(self, job: JobId) -> None:
        self._jobs.pop(job, None)


def _had_run_by(at: float, job: Job, sample: GpuSample) -> bool:
    """Whether its first kernel on this GPU was seen by then: before that, it did not train."""
    return any(gpu == sample.gpu and kernel_at <= at for gpu, kernel_at in job.kernels)


# -- the first kernel
def has_run_kernel(job: Job, readings: Sequence[Reading], alone: bool, settings: Settings) -> bool:
    """Whether the job has run its first kernel on a GPU (CARMA paper, 3.2).

    `readings` are the window's, the latest one last; `alone`: no other job is on the GPU.

    The driver may not say which process keeps a GPU busy: it may blame the MPS server for all of
    its clients, and on some GPUs it says nothing. Being there proves nothing then, as a job has a
    context long before its first kernel. It has run one if the GPU is busy and either its activity
    has risen, or, since a neighbour may hide that, the job holds more memory than a context takes,
    and has held the same for a window. Whose rise it is, and whether steady memory waits for data,
    is unknown.

    Where it does say, FAINT utilisation is one only if it lasts for a window.
    """
    latest = readings[-1][0]
    own = _processes(job, latest)
    if any((process.sm_util or 0.0) > FAINT for process in own):
        return True
    if any(process.sm_util for process in own):
        return _fills_window(readings, settings) and all(
            any(process.sm_util for process in _processes(job, sample)) for sample, _ in readings
        )
    if all(process.sm_util is not None for process in own):
        return False
    activity = latest.activity
    if activity is None:
        return _memory(job, latest) is None or is_steady(job, readings, settings)
    if activity == 0:
        return False
    unshared = alone and not _has_other_load(job, latest, settings.monitor)
    before = 0.0 if unshared else _highest_before(readings)
    return activity >= before + RISE or is_steady(job, readings, settings)


def _has_other_load(job: Job, sample: GpuSample, monitor: Monitor) -> bool:
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


def is_steady(job: Job, readings: Sequence[Reading], settings: Settings) -> bool:
    """Whether it has held more than a bare context for a whole window, without allocating or
    freeing memory."""
    context_mib = settings.estimation.any_context_mib
    memory = [_memory(job, sample) for sample, _ in readings]
    reported = [mib for mib in memory if mib is not None]
    if len(reported) < len(memory) or not _fills_window(readings, settings):
        return False
    return min(reported) > context_mib and max(reported) - min(reported) <= STEADY * max(reported)


def _fills_window(readings: Sequence[Reading], settings: Settings) -> bool:
    monitor = settings.monitor
    return sum(seconds for _, seconds in readings) > monitor.window_s - monitor.period_s


def _memory(job: Job, sample: GpuSample) -> int | None:
    """What its processes hold, in MiB, or all processes if that is not reported; None: unknown, or
    it is not there."""
    own = _processes(job, sample)
    if not own:
        return None
    reported = [each.memory_mib for each in own if each.memory_mib is not None]
    return sum(reported) if len(reported) == len(own) else sample.memory_used_mib


def _processes(job: Job, sample: GpuSample) -> list[ProcessUse]:
    """Of its current attempt."""
    attempts = (job.attempt, None)
    return [p for p in sample.processes if p.job == job.id and p.attempt in attempts]
