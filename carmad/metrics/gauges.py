"""What can be read off the daemon at any moment: GPUs, jobs, the queue, its disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from carmad import beats
from carmad.core.gpuview import GpuView
from carmad.core.scene import Scene
from carmad.core.types import ENDED, Gpu, GpuSample, JobState
from carmad.metrics import declared
from carmad.metrics.declared import Metric
from carmad.notify.stuck import stuck

Figure = tuple[Metric, tuple[str, ...], float]
K = TypeVar("K")

MIB = 1 << 20
MOST_USERS = 100


def of_scene(scene: Scene, users: bool) -> Iterator[Figure]:
    """`users`: with jobs by user."""
    yield declared.GPUS_UNREAD, (), bool(scene.unread)
    for view in scene.view.gpus:
        yield from _gpu(view)
    rows = scene.live.rows.values()
    states = _sums((job.state, job.tasks) for job in rows)
    for state in JobState:
        if state not in ENDED:
            yield declared.JOBS, (state.value,), states[state]
    waiting = [job for job in rows if not job.holds_gpus]
    yield declared.JOBS_HELD, (), sum(job.tasks for job in waiting if job.held)
    yield declared.JOBS_RECOVERING, (), sum(job.retry is not None for job in waiting)
    queue = scene.view.queue
    longest_s = max((scene.now - job.submitted_at for job in queue), default=0.0)
    yield declared.QUEUE, (), sum(job.tasks for job in queue)
    yield declared.QUEUE_WAIT_S, (), longest_s
    yield declared.QUEUE_STUCK, (), stuck(scene) is not None
    if users:
        yield from _users(scene)


def _gpu(view: GpuView) -> Iterator[Figure]:
    gpu, sample = view.gpu, view.sample
    its = _labels(gpu)
    yield declared.GPU_INFO, (*its, gpu.name), 1
    yield declared.GPU_FAULTY, its, bool(sample and sample.fault)
    yield declared.GPU_DRAINED, its, view.drained is not None
    yield declared.GPU_STALE, its, view.stale is not None
    yield declared.GPU_JOBS, its, len(view.residents)
    yield declared.GPU_MEMORY, its, gpu.memory_mib * MIB
    promised = gpu.memory_mib - view.free_mib - view.external_mib
    yield declared.GPU_PROMISED, its, max(0, promised) * MIB
    if sample is None or view.stale or sample.fault:
        return
    yield declared.GPU_EXTERNAL, its, view.external_mib * MIB
    for metric, value in _read(sample):
        if value is not None:
            yield metric, its, value


def _read(sample: GpuSample) -> Iterator[tuple[Metric, float | None]]:
    used_mib, energy_mj = sample.memory_used_mib, sample.energy_mj
    yield declared.GPU_USED, None if used_mib is None else used_mib * MIB
    yield declared.GPU_UTILIZATION, sample.utilization
    yield declared.GPU_SM, sample.sm_active
    yield declared.GPU_OCCUPANCY, sample.sm_occupancy
    yield declared.GPU_DRAM, sample.dram_active
    yield declared.GPU_POWER, sample.power_w
    yield declared.GPU_ENERGY, None if energy_mj is None else energy_mj / 1000
    yield declared.GPU_TEMPERATURE, sample.temperature_c


def _labels(gpu: Gpu) -> tuple[str, str]:
    return str(gpu.index), gpu.id


def _users(scene: Scene) -> Iterator[Figure]:
    rows = scene.live.rows.values()
    holding = _sums((job.spec.user, job.tasks) for job in rows if job.holds_gpus)
    waiting = _sums((job.spec.user, job.tasks) for job in rows if not job.holds_gpus)
    named = {user for user, _ in (holding + waiting).most_common(MOST_USERS)}
    for state, by_user in (("running", holding), ("waiting", waiting)):
        shown = Counter(dict.fromkeys(named, 0))
        for user, jobs in by_user.items():
            shown[user if user in named else ""] += jobs
        for user, jobs in shown.items():
            yield declared.USER_JOBS, (user, state), jobs


def _sums(counts: Iterable[tuple[K, int]]) -> Counter[K]:
    sums = Counter[K]()
    for key, number in counts:
        sums[key] += number
    return sums


def of_threads() -> Iterator[Figure]:
    late = {each.thread for each in beats.late()}
    for name, age_s in beats.ages().items():
        yield declared.THREAD_AGE_S, (name,), age_s
        yield declared.THREAD_LATE, (name,), name in late


def of_disk(database: Path) -> Iterator[Figure]:
    """Nothing of what cannot be read."""
    with suppress(OSError):
        log = database.with_name(f"{database.name}-wal")
        size = database.stat().st_size + (log.stat().st_size if log.exists() else 0)
        yield declared.DATABASE, (), size
        disk = os.statvfs(database.parent)
        yield declared.DISK_SIZE, (), disk.f_blocks * disk.f_frsize
        yield declared.DISK_FREE, (), disk.f_bavail * disk.f_frsize
