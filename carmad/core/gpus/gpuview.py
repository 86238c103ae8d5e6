"""A GPU as policies see it: its load, residents and free memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.gpus.readings import held_mib
from carmad.core.gpus.window import Recent, Score
from carmad.core.jobs.attempt import GpuId, JobId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Reason
from carmad.core.rules.reservations import Slot

T = TypeVar("T")

REMEMBERED = 256  # results per value


class Memo:
    """Cached results, which must depend only on the value that owns them and on the question."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def recall(self, question: Hashable, answer: Callable[..., T], *given: object) -> T:
        """`answer(*given)`, or its cached result."""
        cached: T | None = self._answers.get(question)
        if cached is None:
            if len(self._answers) >= REMEMBERED:
                self._answers.clear()
            cached = self._answers[question] = answer(*given)
        return cached


@dataclass(frozen=True, slots=True)
class GpuView:
    gpu: Gpu
    sample: GpuSample | None  # the latest
    recent: Recent  # the samples of the window, and their score
    residents: tuple[Job, ...]
    free_mib: int  # memory neither used nor promised to a resident
    external_mib: int  # memory of external processes: those of no job
    settling: Reason | None  # why it is too early to add a job (TTFK), if it is
    stale: Reason | None  # why its last reading is too old to use, if it is
    drained: str | None  # the admin's reason
    mps_user: tuple[int, str] | None = None  # uid and name, if the node has one user's MPS server
    mps_stray: tuple[int, str] | None = None  # uid and name of a client of the server, of no job
    mps_leaving: tuple[int, str] | None = None  # likewise, but of a job in `left`
    left: frozenset[JobId] = frozenset()  # jobs that have ended here since the last reading
    reserved: tuple[Slot, ...] = ()  # the present or next time of each of its reservations
    early: Reason | None = None  # as `settling`, for jobs that need not wait for the window
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @property
    def id(self) -> GpuId:
        return self.gpu.id

    @property
    def score(self) -> Score:
        return self.recent.score

    def without(self, gone: Set[JobId]) -> GpuView:
        """This GPU as if these jobs had never been here. What the others' load is, nobody knows
        then."""
        left = [job for job in self.residents if job.id in gone]
        if not left:
            return self
        residents = tuple(job for job in self.residents if job.id not in gone)
        free_mib = self.gpu.memory_mib - self.external_mib
        if residents:
            free_mib = self.free_mib + sum(self.counted_mib(job) for job in left)
        by_others = self.settling and self.settling.detail not in {f"job {job.id}" for job in left}
        return replace(
            self,
            residents=residents,
            free_mib=free_mib,
            settling=self.settling if residents and by_others else None,
            recent=self.recent.without_samples(),
        )

    def counted_mib(self, job: Job) -> int:
        """What this resident counts for, as in `free_memory`."""
        return max(self.held_mib(job), promise_mib(job, self.settling is None))

    def held_mib(self, job: Job) -> int:
        """What this resident holds here, as measured."""
        return held_mib(job.id, self.sample) if self.sample else 0

    def with_resident(self, job: Job) -> GpuView:
        """This GPU just after `job` was placed on it."""
        starts = Reason("first_kernel", detail=f"job {job.id}")
        return replace(
            self,
            residents=(*self.residents, job),
            free_mib=self.free_mib - (job.need.safe_mib if job.need else 0),
            settling=starts,
            early=starts,
        )


def is_client(job: Job) -> bool:
    """Whether this resident may be an MPS client. Old attempts have no mode on record."""
    return job.mode is Mode.MPS or job.mode is None


def with_server(gpus: Iterable[GpuView], settings: Settings) -> tuple[GpuView, ...]:
    """A node's GPUs, each with who uses its MPS server, if that serves one user only: the user of
    the server that they share, if they do, and a client that belongs to none of the residents. One
    of a job that has just ended is kept separate: the next reading may no longer show it."""
    gpus, shared = tuple(gpus), settings.collocation
    if not shared.mps or shared.mps_multiuser:
        return gpus
    if shared.mps_scope == "gpu":
        return tuple(_with_mps(gpu, None, _stray(gpu), _leaving(gpu)) for gpu in gpus)
    clients = (job.spec for gpu in gpus for job in gpu.residents if is_client(job))
    user = next(((spec.uid, spec.user) for spec in clients), None)
    stray, leaving = (next(filter(None, map(found, gpus)), None) for found in (_stray, _leaving))
    return tuple(_with_mps(gpu, user, stray, leaving) for gpu in gpus)


def with_client(gpus: Iterable[GpuView], job: Job, settings: Settings) -> tuple[GpuView, ...]:
    """A node's GPUs, perhaps not all of them, after `job` was placed on one or more: if it is a
    client of the server that they share, that is its user's from now on."""
    gpus, shared = tuple(gpus), settings.collocation
    one_user = shared.mps and shared.mps_scope == "node" and not shared.mps_multiuser
    if not one_user or not is_client(job):
        return gpus
    user = job.spec.uid, job.spec.user
    return tuple(_with_mps(gpu, user, gpu.mps_stray, gpu.mps_leaving) for gpu in gpus)


def _with_mps(
    gpu: GpuView,
    user: tuple[int, str] | None,
    stray: tuple[int, str] | None,
    leaving: tuple[int, str] | None,
) -> GpuView:
    if (gpu.mps_user, gpu.mps_stray, gpu.mps_leaving) == (user, stray, leaving):
        return gpu
    return replace(gpu, mps_user=user, mps_stray=stray, mps_leaving=leaving)


def _stray(gpu: GpuView) -> tuple[int, str] | None:
    """Such as a process that hangs in the driver after its job has ended."""
    return next((client for job, client in _clients_left(gpu) if job not in gpu.left), None)


def _leaving(gpu: GpuView) -> tuple[int, str] | None:
    return next((client for job, client in _clients_left(gpu) if job in gpu.left), None)


def _clients_left(gpu: GpuView) -> Iterator[tuple[JobId | None, tuple[int, str]]]:
    """MPS clients in the last reading that belong to no resident, with their jobs."""
    jobs = {job.id for job in gpu.residents}
    for process in gpu.sample.processes if gpu.sample else ():
        if process.mps_uid is not None and process.job not in jobs:
            yield process.job, (process.mps_uid, f"pid {process.pid} of {process.user}")


def free_memory(
    gpu: Gpu, sample: GpuSample | None, residents: tuple[Job, ...], settled: bool
) -> tuple[int, int]:
    """Free memory, and the memory of external processes, in MiB.

    External processes count as measured; a resident counts with the larger of its measured and
    its promised memory. An estimate is promised only until the GPU has settled, after which the
    measurement is more accurate; declared memory is promised for the job's life. A job that has
    just ended may still be in the sample; its memory counts as free.
    """
    used = sample.memory_used_mib or 0 if sample else 0
    processes = sample.processes if sample else ()
    by_job: dict[JobId, int] = dict.fromkeys((job.id for job in residents), 0)
    left = used  # minus the memory of jobs' processes
    for process in processes:
        left -= process.memory_mib or 0 if process.job else 0
        if process.job in by_job:
            by_job[process.job] += process.memory_mib or 0
    held = sum(max(by_job[job.id], promise_mib(job, settled)) for job in residents)
    if residents and any(process.memory_mib is None for process in processes):
        # This GPU does not report memory per process: all of it may be the residents' own.
        return gpu.memory_mib - max(used, held), 0
    external = max(0, left)
    return gpu.memory_mib - external - held, external


def promise_mib(job: Job, settled: bool) -> int:
    if job.state is JobState.RESUMING and job.suspension:
        return job.suspension.gpu_mib
    need = job.need
    if need is None or (settled and not need.firm):
        return 0
    return need.safe_mib


def stale(sample: GpuSample | None, now: float, monitor: Monitor, why: str = "") -> Reason | None:
    """Whether the last reading is too old to place a job by, and why, if that is known."""
    if sample is None:
        return Reason("stale", monitor.stale_s, 0, "s", why or "no reading yet")
    age = now - sample.at
    return Reason("stale", monitor.stale_s, age, "s", why) if age > monitor.stale_s else None


def settling(
    gpu: GpuId,
    residents: tuple[Job, ...],
    since: float | None,
    now: float,
    monitor: Monitor,
    window_s: float,
) -> Reason | None:
    """Whether a resident started too recently to judge the GPU's load (CARMA paper, Table 2), which
    takes `window_s` from its first kernel on.

    A job that has run no kernel for `first_kernel_timeout_s` no longer keeps others away; one at a
    terminal, whose owner may be thinking, does so for a window only.
    """
    for job in residents:
        patience_s = monitor.window_s if job.spec.interactive else monitor.first_kernel_timeout_s
        if job.leaves:
            continue
        if job.state is JobState.RESUMING:
            return Reason("resuming", detail=f"job {job.id}")
        waited = 0.0 if job.started_at is None else now - job.started_at
        seen = computes_since(job, gpu)
        if seen is None and waited < patience_s:
            return Reason("first_kernel", patience_s, waited, "s", f"job {job.id}")
        if seen is not None and now - seen < window_s:
            return Reason("settling", window_s, now - seen, "s", f"job {job.id}")
    watched = 0.0 if since is None else now - since
    if residents and watched < window_s:  # after a restart: nothing is known yet
        return Reason("settling", window_s, watched, "s", "watched anew")
    return None


def computes_since(job: Job, gpu: GpuId) -> float | None:
    """When its first kernel there was seen, or it resumed after that."""
    seen = dict(job.kernels).get(gpu)
    if seen is not None and job.current and job.current.resumed_at is not None:
        return max(seen, job.current.resumed_at)
    return seen
