"""The view of the server on which policies base their decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Literal

from carmad.config import Settings
from carmad.core.gpus.gpuview import GpuView, Memo, is_client, with_client
from carmad.core.jobs.attempt import GpuId, JobId, ProfilingRun
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import Active, JobState
from carmad.core.placing.decision import Reason, Verdict
from carmad.core.rules.admission import Demand, can_fill, demand, mode, refusals
from carmad.core.rules.reservations import Reservation
from carmad.models import Model


@dataclass(frozen=True, slots=True)
class NodeView:
    """One server's GPUs. A node or a GPU on which nothing has changed is the same object in every
    view, so what its `memo` has cached stays valid."""

    name: str
    gpus: tuple[GpuView, ...]
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    def gpu(self, gpu: GpuId) -> GpuView:
        return next(g for g in self.gpus if g.id == gpu)

    def clients_of_others(self, uid: int | None) -> frozenset[JobId]:
        """The jobs that must end before the MPS server of the whole node can serve this user; none
        if there is no such server, or the user (None) needs none."""
        if uid is None:
            return frozenset()
        served = (gpu for gpu in self.gpus if gpu.mps_user)
        clients = (job for gpu in served for job in gpu.residents if is_client(job))
        return frozenset(job.id for job in clients if job.spec.uid != uid)

    def with_resident(self, gpu: GpuId, job: Job, settings: Settings) -> NodeView:
        """This node just after `job` was placed on `gpu`, or was promised it."""
        given = (g.with_resident(job) if g.id == gpu else g for g in self.gpus)
        return NodeView(self.name, with_client(given, job, settings))


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
    # the running jobs that started before their turn and leave, or can leave now, each with how
    # many of `queue` are before it
    fillers: Mapping[JobId, int] = field(default_factory=dict)
    filling_mib: int = 0  # what the host can take of further ones
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
        return View(
            self.now,
            tuple(nodes),
            self.node_of,
            self.queue[:at] + self.queue[at + 1 :],  # not filtered: it is long, and `at` near 0
            (*self.running, placed),
            self.settings,
            self.history,
            self.models,
            last_placed=gpus[-1],
            memory=self.memory,
            reserved=self.reserved,
            preemptible=self.preemptible,
            fillers={id: place - (at < place) for id, place in self.fillers.items()},
            filling_mib=self.filling_mib,
            blocked_until=self.blocked_until,
        )

    def without(self, gone: Set[JobId]) -> View:
        """As if these running jobs had never been on their GPUs."""
        nodes = (NodeView(n.name, tuple(gpu.without(gone) for gpu in n.gpus)) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def waited_s(self, job: Job) -> float:
        """How long this queued job has waited for nothing but GPUs, in seconds."""
        since = max(job.submitted_at, self.blocked_until.get(job.ids[-1], 0.0))
        if job.suspension:
            since = max(since, job.suspension.at)
        elif job.earlier:
            since = max(since, job.earlier[-1].ended_at)
        return self.now - since

    def may_fill(self, job: Job) -> bool:
        """Whether this queued job may start before its turn."""
        return self.filling_mib > 0 and can_fill(job, self.settings, self.now)

    def fillers_behind(self, queued: Job) -> list[Job]:
        """The fillers behind this job in line that leave, or can; first those that do, then from
        the latest to the first."""
        if not self.fillers:
            return []
        at = next(n for n, job in enumerate(self.queue) if job.id == queued.id)
        behind = [job for job in self.running if self.fillers.get(job.id, 0) > at]
        return sorted(behind, key=_staying)

    def gpu(self, gpu: GpuId) -> GpuView:
        return self.nodes[self.node_of[gpu]].gpu(gpu)

    def find_job(self, job: JobId) -> Job | None:
        """In the queue."""
        return next((j for j in self.queue if j.id == job), None)


def by_node(gpus: Iterable[GpuView]) -> tuple[tuple[NodeView, ...], dict[GpuId, int]]:
    """The nodes, in order of first appearance, and the index of each GPU's node."""
    nodes: dict[str, list[GpuView]] = {}
    for view in gpus:
        nodes.setdefault(view.gpu.node, []).append(view)
    places = {view.id: at for at, views in enumerate(nodes.values()) for view in views}
    return tuple(NodeView(name, tuple(views)) for name, views in nodes.items()), places


def _staying(filler: Job) -> tuple[bool, float, int]:
    leaves = filler.state in (JobState.SUSPENDING, JobState.STOPPING)
    return not leaves, -(filler.started_at or inf), -filler.id


def by_suitability(gpus: Iterable[GpuView], wish: Reservation, now: float) -> list[GpuId]:
    """All of them, the best for a reservation first: usable ones, then those that are free by its
    start, then the last in order, as policies take the first."""
    in_s = wish.starts[0] - now

    def rank(gpu: GpuView) -> tuple[bool, bool, int]:
        broken = gpu.drained is not None or bool(gpu.sample and gpu.sample.fault)
        others = [job for job in gpu.residents if not wish.admits(job.spec.owner)]
        latest_s = max((job.at_most_s(now) for job in others), default=-inf)
        return broken, latest_s > in_s, -gpu.gpu.index

    return [gpu.id for gpu in sorted(gpus, key=rank)]
