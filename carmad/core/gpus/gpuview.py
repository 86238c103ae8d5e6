"""A GPU as policies see it: its load, residents and free memory; and which jobs may join one that
settles, as what is known of a job and of the residents need not be waited for.

A resident tells what jobs of its own group need once it computes: those are the tasks of a sweep,
or runs of one command by one user, which would suffer most if it were wrong. For anybody else's
jobs, its memory is known as in the paper: after a window.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, Recent, Score, held_mib, uses_gpu
from carmad.core.jobs.attempt import GpuId, JobId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Reason
from carmad.core.rules.limits import Slot

T = TypeVar("T")
REMEMBERED = 256  # results per value
ASSUMED_ACTIVITY = 0.6  # of a job that has never been measured
MOST_ACTIVITY = 1.0  # of a GPU, with the job that joins
GROWTH = 1.25  # the memory of a job that has computed for some seconds only may still grow by this
OWN_MEMORY = "the memory of this job is not known"


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

    def vacated(self) -> GpuView:
        """This GPU when all jobs and reservations of now are over; an MPS server has no client."""
        return replace(
            self,
            residents=(),
            settling=None,
            free_mib=self.gpu.memory_mib - self.external_mib,
            mps_user=None,
            mps_leaving=None,
            reserved=(),
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
    if seen is not None and job.current.resumed_at is not None:
        return max(seen, job.current.resumed_at)
    return seen


@dataclass(frozen=True, slots=True)
class NodeView:
    """One server's GPUs. A node or a GPU on which nothing has changed is the same object in every
    view, so what its `memo` has cached stays valid."""

    name: str
    gpus: tuple[GpuView, ...]
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    def gpu(self, gpu: GpuId) -> GpuView:
        return next(g for g in self.gpus if g.id == gpu)

    def with_resident(self, gpu: GpuId, job: Job, settings: Settings) -> NodeView:
        """This node just after `job` was placed on `gpu`, or was promised it."""
        given = (g.with_resident(job) if g.id == gpu else g for g in self.gpus)
        return NodeView(self.name, with_client(given, job, settings))


def by_node(gpus: Iterable[GpuView]) -> tuple[tuple[NodeView, ...], dict[GpuId, int]]:
    """The nodes, in order of first appearance, and the index of each GPU's node."""
    nodes: dict[str, list[GpuView]] = {}
    for view in gpus:
        nodes.setdefault(view.gpu.node, []).append(view)
    places = {view.id: at for at, views in enumerate(nodes.values()) for view in views}
    return tuple(NodeView(name, tuple(views)) for name, views in nodes.items()), places


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
        known = 0.0 if gpu.sample and uses_gpu(job.id, gpu.sample) else ASSUMED_ACTIVITY
    return max(known, measured)
