"""What policies see, and the hard rules: which GPUs a job may be placed on at all. Policies choose
only among those.

A rule sees only a job's `Demand`, so equal demands get their verdicts only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from math import inf
from typing import Literal, Protocol

from carmad.config import Settings
from carmad.core.gpus.gpu import GpuChoice, choice
from carmad.core.gpus.gpuview import (
    GpuView,
    Known,
    NodeView,
    find_excess,
    find_unknown,
    is_client,
    knowledge,
)
from carmad.core.jobs.attempt import GpuId, JobId, Mode, ProfilingRun, Suspension
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import Active, JobState
from carmad.core.placing.decision import Proposal, Reason, Verdict
from carmad.learning.models import Model

PASSING = frozenset({"first_kernel", "settling", "resuming"})  # over soon, whatever people do


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Everything about a job that determines which GPUs it may use. Made by `demand`, which
    interns equal ones."""

    gpus: int
    alone: bool  # it must have its GPUs to itself
    mps_uid: int | None  # whose MPS server it needs, if a server serves only one user
    estimate: Estimate | None
    retry: Retry | None
    # This and the next only matter, and are only set, if a GPU is reserved.
    owner: Owner | None = None
    at_most_s: float = inf
    suspension: Suspension | None = None  # what it needs to resume
    yields: bool = False  # it is suspended when a reservation begins
    choice: GpuChoice | None = None  # None: any GPU
    known: Known | None = None  # None: it waits until GPUs have settled
    is_busy: bool = False  # as in `may_keep_busy`


def demand(
    job: Job, settings: Settings, alone_for_now: bool = False, reserved_at: float | None = None
) -> Demand:
    """A job whose memory need is not known yet may only have idle GPUs. `reserved_at`: the present
    time, if any GPU is reserved."""
    one_user = under_mps(job, settings) and not settings.collocation.mps_multiuser
    uid = job.spec.uid if one_user else None
    alone = alone_for_now or job.exclusive or job.state is JobState.PENDING
    known = knowledge(job) if settings.monitor.known_s < settings.monitor.window_s else None
    its = job.estimate, job.retry
    wanted = partial(_demand, job.spec.gpus, alone, uid, *its, choice=choice(job.spec), known=known)
    wanted = partial(wanted, is_busy=may_keep_busy(job, settings))
    if reserved_at is None:
        return wanted(suspension=job.suspension)
    yields = settings.limits.preemption == "suspend" and can_be_suspended(job, settings)
    at_most_s = job.at_most_s(reserved_at)
    return wanted(job.spec.owner, at_most_s, suspension=job.suspension, yields=yields)


_demand = lru_cache(maxsize=1024)(Demand)  # an estimate takes some KiB with all its notes


def may_keep_busy(job: Job, settings: Settings) -> bool:
    """Whether a job on time slices may use all of them: nothing shows that it does not. False if
    that does not matter."""
    limit = settings.risk.utilization
    if not limit or under_mps(job, settings):
        return False
    known = job.profile.mean("gpu_utilization") if job.profile else None
    return known is None or known >= limit


def can_be_suspended(job: Job, settings: Settings) -> bool:
    """Whether that is to be expected, once it runs."""
    can = settings.suspend.host_memory_mib and not job.unsuspendable and not job.spec.allocation
    return bool(can) and not under_mps(job, settings)


Rule = Callable[[Demand, GpuView, Settings], Reason | None]


def refusals(wanted: Demand, gpu: GpuView, settings: Settings) -> tuple[Reason, ...]:
    """Every hard rule that keeps `wanted` off `gpu`; none: the GPU is admissible."""
    return tuple(reason for rule in RULES if (reason := rule(wanted, gpu, settings)))


def under_mps(job: Job, settings: Settings) -> bool:
    """Whether the job is to be a client of an MPS server.

    A process can be the client of one server only. Where each GPU has its own, a multi-GPU job runs
    outside, time-sliced with the servers.
    """
    shared = settings.collocation
    served = job.spec.gpus == 1 or shared.mps_scope == "node"
    return shared.mps and served and not job.exclusive


def mode(job: Job, gpus: Iterable[GpuView], settings: Settings) -> Mode:
    """How a job is launched on its GPUs (CARMA paper, 3.6)."""
    if any(gpu.gpu.is_mig for gpu in gpus):
        return Mode.MIG
    if job.exclusive:
        return Mode.EXCLUSIVE
    return Mode.MPS if under_mps(job, settings) else Mode.STREAMS


def idle(gpu: GpuView, settings: Settings) -> Reason | None:
    """None if the GPU is idle; the few MiB of a desktop do not count."""
    if gpu.residents:
        return Reason("busy", 0, len(gpu.residents), "jobs", _labels(gpu))
    if gpu.external_mib > settings.monitor.external_mib:
        return Reason("external", settings.monitor.external_mib, gpu.external_mib, "MiB")
    return None


def _fault(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    if gpu.sample is not None and gpu.sample.fault:
        return Reason("fault", detail=gpu.sample.fault)
    return None


def _drain(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    return Reason("drained", detail=gpu.drained) if gpu.drained else None


def _reservation(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    """A job of anyone else must end before the reservation starts, or can be suspended then. One of
    unknown duration may not start within the notice."""
    for slot in gpu.reserved:
        if wanted.owner and slot.of.admits(wanted.owner):
            continue
        whose = slot.of.whose
        if slot.in_s and wanted.yields and not gpu.gpu.is_mig:
            continue
        if not slot.in_s:
            return Reason("reservation", slot.ends_at, slot.starts_at, detail=whose)
        if wanted.at_most_s == inf:
            if slot.in_s < (notice_s := settings.limits.reservation_notice_s):
                return Reason("reservation_notice", slot.starts_at, notice_s, "s", whose)
        elif wanted.at_most_s > slot.in_s:
            return Reason("reservation_ahead", slot.starts_at, wanted.at_most_s, "s", whose)
    return None


def _stale(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    return gpu.stale


def _mig(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    if not gpu.gpu.is_mig:
        return None
    if wanted.gpus > 1:  # the portable rule: a process sees one MIG instance
        return Reason("mig_single", 1, wanted.gpus, "GPUs")
    return Reason("busy", 0, len(gpu.residents), "jobs", _labels(gpu)) if gpu.residents else None


def _exclusive(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    if wanted.alone:
        return idle(gpu, settings)
    for resident in gpu.residents:
        if resident.exclusive or resident.mode is Mode.EXCLUSIVE:
            return Reason("exclusive", detail=f"job {resident.id}")
        if resident.profiling:
            return Reason("profiling", resident.profiling.until, detail=f"job {resident.id}")
    return None


def _settling(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    """What is known need not be waited for, once all residents compute."""
    why, early = gpu.settling, gpu.early
    if why is None or wanted.known is None or wanted.alone:
        return why
    if early is not None and early.code != "settling":
        return early
    missing = find_unknown(wanted.known, gpu, settings.monitor)
    if not missing and early is not None:
        return early
    if missing := missing or find_excess(wanted.known, gpu, settings):
        return replace(why, detail=f"{why.detail}; {missing}")
    return None


def _jobs_per_gpu(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    limit = settings.collocation.max_jobs_per_gpu
    if len(gpu.residents) >= limit:
        return Reason("jobs_per_gpu", limit, len(gpu.residents), "jobs")
    return None


def _mps_user(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    """One MPS server serves one user; a second user's job would hang in cuInit."""
    if wanted.mps_uid is None or gpu.gpu.is_mig:  # jobs on an instance run outside MPS
        return None
    users = [(job.spec.uid, job.spec.user) for job in gpu.residents if is_client(job)]
    users += filter(None, (gpu.mps_user, gpu.mps_stray, gpu.mps_leaving))
    other = next((name for uid, name in users if uid != wanted.mps_uid), None)
    return Reason("mps_user", detail=other) if other is not None else None


def _choice(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    if wanted.choice is not None and not wanted.choice.accepts(gpu.gpu):
        return Reason("choice", detail=str(wanted.choice))
    return None


def _avoid(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    if wanted.retry and gpu.id in wanted.retry.avoid:
        return Reason("avoid", detail="ran out of memory there")
    return None


def _resume(wanted: Demand, gpu: GpuView, settings: Settings) -> Reason | None:
    """A suspended job can resume on its own GPUs, or on others of the kind, and needs as much
    memory as it had."""
    its = wanted.suspension
    if its is None:
        return None
    if gpu.id not in its.gpus:
        if not settings.suspend.moves:
            return Reason("resume_there")
        if (gpu.gpu.node, gpu.gpu.name) != (its.node, its.kind):
            return Reason("resume_kind", detail=its.kind)
    if gpu.free_mib < its.gpu_mib:
        return Reason("memory", its.gpu_mib, gpu.free_mib, "MiB")
    return None


RULES: tuple[Rule, ...] = (
    _choice,
    _fault,
    _drain,
    _reservation,
    _stale,
    _mig,
    _exclusive,
    _settling,
    _jobs_per_gpu,
    _mps_user,
    _avoid,
    _resume,
)


def _labels(gpu: GpuView) -> str:
    return ", ".join(f"job {job.id}" for job in gpu.residents)


class IdleGpus:
    """Which GPUs a job may have whose memory need is not known yet: idle ones."""

    def __init__(
        self, gpus: Iterable[GpuView], settings: Settings, reserved_at: float | None
    ) -> None:
        self._gpus = [gpu for gpu in gpus if idle(gpu, settings) is None]
        self._settings = settings
        self._reserved_at = reserved_at
        self._counts: dict[Demand, int] = {}

    def is_enough(self, job: Job, before: int) -> bool:
        """Whether there are enough for it if jobs before it take so many. Declared memory must be
        known first: it is a limit, and the answer takes no time."""
        wanted = before + job.spec.gpus
        if wanted > len(self._gpus) or job.spec.declared is not None:
            return False
        its = demand(job, self._settings, reserved_at=self._reserved_at)
        if its not in self._counts:
            admissible = (gpu for gpu in self._gpus if not refusals(its, gpu, self._settings))
            self._counts[its] = sum(1 for _ in admissible)
        return wanted <= self._counts[its]


@dataclass(frozen=True, slots=True)
class View:
    now: float
    nodes: tuple[NodeView, ...]
    node_of: Mapping[GpuId, int]  # the index in `nodes` of a GPU's node
    queue: tuple[Job, ...]  # jobs that may start now, in order
    running: tuple[Job, ...]  # jobs that hold GPUs
    settings: Settings
    history: History
    models: Mapping[str, Model]  # trained models, by name
    last_placed: GpuId | None = None  # the GPU used last (round-robin's position)
    memory: object = None  # the policy's last `Remember`; None after a restart
    reserved: bool = False  # whether any GPU is
    # The running jobs whose GPUs can be taken back now, and how.
    preemptible: Mapping[JobId, Literal["suspend", "requeue"]] = field(default_factory=dict)
    # When something besides the GPUs last kept a job from starting, by the last of its `ids`: a
    # row of tasks gives the first ones away.
    blocked_until: Mapping[int, float] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """All GPUs, node by node."""
        return tuple(chain.from_iterable(node.gpus for node in self.nodes))

    def demand(self, job: Job, profiling: bool = False) -> Demand:
        """What determines which GPUs the job may use; with `profiling`, for a profiling run."""
        reserved_at = self.now if self.reserved else None
        return demand(job, self.settings, profiling, reserved_at)

    def refusals(self, wanted: Demand, gpu: GpuView) -> tuple[Reason, ...]:
        """Every hard rule that keeps `wanted` off `gpu`."""
        return refusals(wanted, gpu, self.settings)

    def judge(self, job: Job) -> tuple[tuple[GpuView, ...], tuple[Verdict, ...]]:
        """The GPUs that the hard rules allow for `job`, and a verdict on each of the others."""
        wanted = self.demand(job)
        answers = [(gpu, self.refusals(wanted, gpu)) for gpu in self.gpus]
        return (
            tuple(gpu for gpu, reasons in answers if not reasons),
            tuple(Verdict(gpu.id, reasons) for gpu, reasons in answers if reasons),
        )

    def with_placement(
        self,
        job: Job,
        gpus: tuple[GpuId, ...],
        profiling: ProfilingRun | None = None,
        accumulation: int = 1,
    ) -> View:
        """The view after `job` was placed on `gpus`."""
        attempt = job.new_attempt(
            gpus,
            self.now,
            mode=mode(job, map(self.gpu, gpus), self.settings),
            profiling=profiling,
            accumulation=accumulation,
        )
        placed = replace(job, status=Active(JobState.STARTING, attempt))
        nodes = list(self.nodes)
        for gpu in gpus:
            at = self.node_of[gpu]
            nodes[at] = nodes[at].with_resident(gpu, placed, self.settings)
        at = next((n for n, each in enumerate(self.queue) if each.id == job.id), len(self.queue))
        return replace(
            self,
            nodes=tuple(nodes),
            queue=self.queue[:at] + self.queue[at + 1 :],  # not filtered: it is long, `at` near 0
            running=(*self.running, placed),
            last_placed=gpus[-1],
        )

    def waited_s(self, job: Job) -> float:
        """How long this queued job has waited for nothing but GPUs, in seconds."""
        since = max(job.submitted_at, self.blocked_until.get(job.ids[-1], 0.0))
        if job.suspension:
            since = max(since, job.suspension.at)
        elif job.earlier:
            since = max(since, job.earlier[-1].ended_at)
        return self.now - since

    def gpu(self, gpu: GpuId) -> GpuView:
        return self.nodes[self.node_of[gpu]].gpu(gpu)

    def find_job(self, job: JobId) -> Job | None:
        """In the queue."""
        return next((j for j in self.queue if j.id == job), None)


class Policy(Protocol):
    """Chooses GPUs for queued jobs. Pure: same view, same plan. State for the next plan is passed
    on with `Remember`."""

    @property
    def name(self) -> str: ...

    def order(self, job: Job) -> float:
        """A queued job's sort key: lowest first, ties by arrival. Called once per change of
        the job. Jobs in the recovery queue, and those with a lower `nice`, always go first."""
        ...

    def plan(self, view: View) -> tuple[Proposal, ...]:
        """Proposals, in the order in which to carry them out.

        A placement without GPUs says why that job waits. Jobs left out wait in line. The GPUs of
        a preempted job are free only in a later view, when its processes are gone.
        """
        ...
