"""Idle GPUs, and consolidated placement on them (Lucid paper, 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain

from carmad.plugin import Demand, GpuId, GpuView, NodeView, Reason, View
from policies.rules import Filter

ANYBODY = Demand(1, alone=True, mps_uid=None, estimate=None, retry=None)
RESERVED = {"reservation", "reservation_notice", "reservation_ahead"}  # for somebody


class Room:
    """Idle GPUs, node by node."""

    def __init__(self, nodes: Iterable[Sequence[GpuView]]) -> None:
        self._nodes = [node for node in nodes if node]
        self.free = sum(map(len, self._nodes))

    def choose(
        self, wanted: Demand, view: View, fits: Filter, spread: bool = True
    ) -> tuple[GpuView, ...]:
        """GPUs on the node with the fewest idle GPUs that has enough, to keep room for larger jobs;
        otherwise, with `spread`, on as few nodes as possible. None if there are too few."""
        for node in sorted(self._nodes, key=len):
            if len(node) >= wanted.gpus:
                gpus = _first(wanted, node, view, fits)
                if gpus:
                    return gpus
        if not spread:
            return ()
        fullest_first = sorted(self._nodes, key=lambda node: -len(node))
        return _first(wanted, chain.from_iterable(fullest_first), view, fits)

    def without(self, gpus: Collection[GpuView]) -> None:
        """Remove GPUs that were given to a job."""
        taken = {gpu.id for gpu in gpus}
        names = {gpu.gpu.node for gpu in gpus}
        for at, node in enumerate(self._nodes):
            if node[0].gpu.node in names:
                self._nodes[at] = [gpu for gpu in node if gpu.id not in taken]
        self._nodes = [node for node in self._nodes if node]
        self.free = sum(map(len, self._nodes))

    def renew(self, view: View) -> None:
        """See the same GPUs in a later view."""
        self._nodes = [[view.gpu(gpu.id) for gpu in node] for node in self._nodes]


def idle_but(apart: frozenset[GpuId], view: View) -> Room:
    """All idle GPUs but these: those that some job could have to itself. Whether a certain job can
    depends on the job."""
    return Room(
        node.memo.recall((idle_but, apart), _idle_on, node, view, lambda gpu: gpu.id not in apart)
        for node in view.nodes
    )


def idle_of(gpus: frozenset[GpuId], view: View) -> Room:
    """Those of `gpus` that are idle."""
    nodes = sorted({view.node_of[gpu] for gpu in gpus})
    return Room(_idle_on(view.nodes[n], view, lambda gpu: gpu.id in gpus) for n in nodes)


def _idle_on(node: NodeView, view: View, counts: Callable[[GpuView], bool]) -> tuple[GpuView, ...]:
    return tuple(
        gpu
        for gpu in node.gpus
        if not gpu.residents
        and counts(gpu)
        and all(each.code in RESERVED for each in refusals(ANYBODY, gpu, view))
    )


def refusals(wanted: Demand, gpu: GpuView, view: View) -> tuple[Reason, ...]:
    """Every hard rule that keeps `wanted` off `gpu`, cached."""
    return gpu.memo.recall((refusals, wanted), view.refusals, wanted, gpu)


def _first(
    wanted: Demand, gpus: Iterable[GpuView], view: View, fits: Filter
) -> tuple[GpuView, ...]:
    """The first that fit, as many as wanted; none if there are too few."""
    found = []
    for gpu in gpus:
        if not refusals(wanted, gpu, view) and not fits(wanted, gpu):
            found.append(gpu)
            if len(found) == wanted.gpus:
                return tuple(found)
    return ()
