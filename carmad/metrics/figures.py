"""The figures: what can be read off the daemon at any moment (GPUs, jobs, the queue, its disk), and
what is counted, as steps are committed, since it started."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import (
    PROCESS_COLLECTOR,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)

from carmad import beats
from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.gpus.gpuview import GpuView, promise_mib
from carmad.core.gpus.readings import memory_of
from carmad.core.gpus.sharing import label
from carmad.core.happenings import Happening, Kind
from carmad.core.jobs.attempt import Cause, GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import ENDED, JobState
from carmad.core.messages import Event, Step
from carmad.core.scene import Scene
from carmad.edge import Follower
from carmad.metrics import declared
from carmad.metrics.declared import Metric, clean
from carmad.notify.letters import find_stuck

Figure = tuple[Metric, tuple[str, ...], float]
K = TypeVar("K")

MIB = 1 << 20
MOST_USERS = 100
MOST_JOBS = 200


def of_scene(scene: Scene, users: bool, jobs: bool) -> Iterator[Figure]:
    """`users`: with jobs by user. `jobs`: with those that hold GPUs, one by one."""
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
    moved_mib = sum(job.suspension.host_mib for job in rows if job.suspension)
    yield declared.SUSPENDED_MEMORY, (), moved_mib * MIB
    queue = scene.view.queue
    longest_s = max((scene.now - job.submitted_at for job in queue), default=0.0)
    yield declared.QUEUE, (), sum(job.tasks for job in queue)
    yield declared.QUEUE_WAIT_S, (), longest_s
    yield declared.QUEUE_STUCK, (), find_stuck(scene) is not None
    if users:
        yield from _users(scene)
    if jobs:
        yield from _jobs(scene)


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
    for kind in {each.kind for each in sample.conditions}:
        yield declared.GPU_CONDITION, (*its, kind), 1
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


def _jobs(scene: Scene) -> Iterator[Figure]:
    resident = {job.id: job for view in scene.view.gpus for job in view.residents}
    shown = frozenset(sorted(resident)[-MOST_JOBS:])
    for view in scene.view.gpus:
        sample = view.sample
        if sample is None or sample.fault or view.stale:
            continue
        for job in (each for each in view.residents if each.id in shown):
            its = (label(job), job.spec.user, *_labels(view.gpu))
            used = scene.usage.get(job.id, job.usage)
            yield declared.JOB_MEMORY, its, memory_of(job, (sample,)).get(view.id, 0) * MIB
            yield declared.JOB_PEAK, its, used.peak_mib * MIB
            yield declared.JOB_PROMISED, its, promise_mib(job, view.settling is None) * MIB
            busy = [each.sm_util for each in sample.processes if each.job == job.id]
            if known := [each for each in busy if each is not None]:
                yield declared.JOB_ACTIVE, its, min(1.0, sum(known))


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


def page(figures: Iterable[Figure], counts: Counts) -> bytes:
    """`figures` and `counts`, and those of this process, in Prometheus' text format."""
    read = CollectorRegistry()
    series: dict[Metric, Any] = {}
    for metric, labels, value in figures:
        if metric not in series:
            series[metric] = metric.series(read)
        its = series[metric].labels(*clean(labels)) if labels else series[metric]
        its.inc(value)  # from 0, and a counter has nothing else
    read.register(PROCESS_COLLECTOR)
    return generate_latest(read) + generate_latest(counts.registry)


# Of each counter, a gauge that says when it began.
disable_created_metrics()  # type: ignore[no-untyped-call]

CAUSES = tuple(cause for cause in Cause if cause is not Cause.DEPENDENCY)  # ends of attempts
RETRIED, GIVEN_UP = "retried", "given_up"
MOST_ESTIMATORS = 16  # with labels of their own: a plugin's author may name its answers at will
OTHER = "other"


class Counts(Follower):
    """Counts what happens to jobs, and what it follows of the core's steps."""

    def __init__(self) -> None:
        self.registry = of = CollectorRegistry()
        self._step_s = declared.STEP_S.series(of)
        self._commit_s = declared.COMMIT_S.series(of)
        self._failed = declared.STEPS_FAILED.series(of)
        self._submitted = declared.SUBMITTED.series(of)
        self._ended = declared.ENDED.series(of)
        self._attempts = declared.ATTEMPTS.series(of)
        self._ooms = declared.OOMS.series(of)
        self._recovered = declared.RECOVERED.series(of)
        self._suspensions = declared.SUSPENSIONS.series(of)
        self._wait_s = declared.WAIT_S.series(of)
        self._ratio = declared.ESTIMATE.series(of)
        for series, labels in (
            (self._ended, ENDED),
            (self._attempts, CAUSES),
            (self._ooms, (RETRIED, GIVEN_UP)),
        ):
            for each in labels:
                series.labels(each)  # it begins with 0
        self._estimators: set[str] = set()
        self._under_way = False  # a step that is not committed yet

    def hear(self, events: Sequence[Event]) -> None:
        self._under_way = True

    def on_timing(self, step: Step, core_s: float, commit_s: float) -> None:
        self._under_way = False
        self._step_s.observe(core_s)
        if step.to_write:
            self._commit_s.observe(commit_s)

    def on_reset(self, jobs: Iterable[Job]) -> None:
        if self._under_way:
            self._under_way = False
            self._failed.inc()

    def on_happenings(self, happened: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        for each in happened:
            if each.job is not None:
                self._note(each.kind, each.job, each)

    def _note(self, kind: Kind, job: Job, happening: Happening) -> None:
        match kind:
            case Kind.SUBMITTED:
                self._submitted.inc(happening.count)
            case Kind.STARTED if job.attempt == 1 and job.started_at is not None:
                self._wait_s.observe(max(0.0, job.started_at - job.submitted_at))
            case Kind.RETRIED | Kind.REQUEUED if happening.cause:  # none: its owner requeued it
                self._count_attempt(happening.cause, RETRIED)
            case Kind.SUSPENDED:
                self._suspensions.inc()
            case Kind.ENDED:
                self._ended.labels(job.state).inc(happening.count)
                if job.status.attempt and job.exit:
                    self._count_attempt(job.exit.cause, GIVEN_UP)
                if job.state is JobState.SUCCEEDED:
                    self._count_success(job)

    def _count_attempt(self, cause: Cause, then: str) -> None:
        self._attempts.labels(cause).inc()
        if cause is Cause.GPU_OOM:
            self._ooms.labels(then).inc()

    def _count_success(self, job: Job) -> None:
        if any(failure.cause is Cause.GPU_OOM for failure in job.failures):
            self._recovered.inc()
        if job.need is None or not job.usage.peak_mib:
            return
        for estimate in {each.source: each for each in (*job.need.others, job.need)}.values():
            (source,) = clean([estimate.source])
            if len(self._estimators) >= MOST_ESTIMATORS and source not in self._estimators:
                source = OTHER
            self._estimators.add(source)
            self._ratio.labels(source).observe(estimate.mib / job.usage.peak_mib)
