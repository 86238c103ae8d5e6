"""The picture of the server that policies decide on: all they may know, and all they need."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar, cast

from carmad.config import Settings
from carmad.core.admission import Demand, demand, refusals
from carmad.core.decision import Verdict
from carmad.core.gpuview import GpuView
from carmad.core.types import GpuId, Job, JobId

T = TypeVar("T")

REMEMBERED = 256  # answers about one node


@dataclass(frozen=True, slots=True)
class NodeView:
    """One server's GPUs. As long as nothing on it changes, every view has the same NodeView, so
    what was found out about it need not be found out again."""

    name: str
    gpus: tuple[GpuView, ...]
    _known: dict[Hashable, object] = field(default_factory=dict, repr=False, compare=False)

    def recall(self, question: Hashable, answer: Callable[[NodeView], T]) -> T:
        """`answer(self)`, worked out once for each `question`."""
        if (known := self._known.get(question)) is not None:
            return cast(T, known)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        known = self._known[question] = answer(self)
        return known

    def judge(
        self, wanted: Demand, settings: Settings
    ) -> tuple[tuple[GpuView, ...], tuple[Verdict, ...]]:
        """The GPUs that no hard rule keeps `wanted` off, and the verdict on each of the others."""
        admissible: list[GpuView] = []
        refused: list[Verdict] = []
        for gpu in self.gpus:
            if reasons := refusals(wanted, gpu, settings):
                refused.append(Verdict(gpu.id, reasons))
            else:
                admissible.append(gpu)
        return tuple(admissible), tuple(refused)

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
    last_placed: GpuId | None = None  # the GPU given out last (round-robin's place)

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """All of them, node by node."""
        return tuple(chain.from_iterable(node.gpus for node in self.nodes))

    def demand(self, job: Job) -> Demand:
        """All of `job` that decides which GPUs it can have."""
        return demand(job, self.settings)

    def judge(self, job: Job) -> tuple[tuple[GpuView, ...], tuple[Verdict, ...]]:
        """The GPUs that no hard rule keeps `job` off, and the verdict on each of the others."""
        wanted = self.demand(job)
        judged = [node.judge(wanted, self.settings) for node in self.nodes]
        return (
            tuple(chain.from_iterable(admissible for admissible, _ in judged)),
            tuple(chain.from_iterable(refused for _, refused in judged)),
        )

    def with_placement(self, job: Job, gpus: tuple[GpuId, ...]) -> View:
        """The view after `job` was given `gpus`."""
        placed = replace(job, gpus=gpus, started_at=self.now)
        nodes = list(self.nodes)
        for gpu in gpus:
            at = self.node_of[gpu]
            nodes[at] = nodes[at].with_resident(gpu, placed)
        return replace(
            self,
            nodes=tuple(nodes),
            queue=_without(self.queue, job.id),
            running=(*self.running, placed),
            last_placed=gpus[-1],
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
