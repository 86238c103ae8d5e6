"""The view of the server on which policies base their decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from carmad.config import Settings
from carmad.core.admission import Demand, demand, refusals
from carmad.core.decision import Reason, Verdict
from carmad.core.gpuview import GpuView
from carmad.core.history import History
from carmad.core.memo import Memo
from carmad.core.types import GpuId, Job, JobId, ProfilingRun
from carmad.models import Model


@dataclass(frozen=True, slots=True)
class NodeView:
    """One server's GPUs. As long as nothing on it changes, every view has the same NodeView, and
    as long as nothing on a GPU does, the same GpuView: what is `known` of them stands."""

    name: str
    gpus: tuple[GpuView, ...]
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    def gpu(self, gpu: GpuId) -> GpuView:
        return next(g for g in self.gpus if g.id == gpu)

    def with_resident(self, gpu: GpuId, job: Job) -> NodeView:
        """This node just after `job` was given `gpu`."""
        given = (g.with_resident(job) if g.id == gpu else g for g in self.gpus)
        return NodeView(self.name, tuple(given))


@dataclass(frozen=True, slots=True)
class View:
    now: float
    nodes: tuple[NodeView, ...]
    node_of: Mapping[GpuId, int]  # where in `nodes` a GPU's node stands
    queue: tuple[Job, ...]  # those that may start now, in line order
    running: tuple[Job, ...]  # those that hold GPUs
    settings: Settings
    history: History
    models: Mapping[str, Model]  # what was learned, by name
    last_placed: GpuId | None = None  # the GPU given out last (round-robin's place)
    memory: object = None  # what the policy last wished to be remembered, since the daemon started

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """All of them, node by node."""
        return tuple(chain.from_iterable(node.gpus for node in self.nodes))

    def demand(self, job: Job, profiling: bool = False) -> Demand:
        """All of `job` that decides which GPUs it can have, as it is or to be profiled."""
        return demand(job, self.settings, alone_for_now=profiling)

    def refusals(self, wanted: Demand, gpu: GpuView) -> tuple[Reason, ...]:
        """Every hard rule that keeps `wanted` off `gpu`."""
        return refusals(wanted, gpu, self.settings)

    def judge(self, job: Job) -> tuple[tuple[GpuView, ...], tuple[Verdict, ...]]:
        """The GPUs that no hard rule keeps `job` off, and the verdict on each of the others."""
        wanted = self.demand(job)
        judged = [(gpu, self.refusals(wanted, gpu)) for gpu in self.gpus]
        return (
            tuple(gpu for gpu, reasons in judged if not reasons),
            tuple(Verdict(gpu.id, reasons) for gpu, reasons in judged if reasons),
        )

    def with_placement(
        self,
        job: Job,
        gpus: tuple[GpuId, ...],
        profiling: ProfilingRun | None = None,
        accumulation: int = 1,
    ) -> View:
        """The view after `job` was given `gpus`."""
        placed = job.placed(gpus, self.now, profiling=profiling, accumulation=accumulation)
        nodes = list(self.nodes)
        for gpu in gpus:
            at = self.node_of[gpu]
            nodes[at] = nodes[at].with_resident(gpu, placed)
        return View(
            self.now,
            tuple(nodes),
            self.node_of,
            _without(self.queue, job.id),
            (*self.running, placed),
            self.settings,
            self.history,
            self.models,
            last_placed=gpus[-1],
            memory=self.memory,
        )

    def gpu(self, gpu: GpuId) -> GpuView:
        return self.nodes[self.node_of[gpu]].gpu(gpu)

    def queued(self, job: JobId) -> Job | None:
        return next((j for j in self.queue if j.id == job), None)


def by_node(gpus: Iterable[GpuView]) -> tuple[tuple[NodeView, ...], dict[GpuId, int]]:
    """The GPUs as nodes, in the order in which these first appear, and each GPU's place there."""
    nodes: dict[str, list[GpuView]] = {}
    for view in gpus:
        nodes.setdefault(view.gpu.node, []).append(view)
    places = {view.id: at for at, views in enumerate(nodes.values()) for view in views}
    return tuple(NodeView(name, tuple(views)) for name, views in nodes.items()), places


def _without(queue: tuple[Job, ...], job: JobId) -> tuple[Job, ...]:
    """Cut, not filtered: queues are long, and those placed mostly stand in front."""
    at = next((n for n, each in enumerate(queue) if each.id == job), len(queue))
    return queue[:at] + queue[at + 1 :]
