"""Idle GPUs, and consolidated placement on them (Lucid paper, 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate, chain

from carmad.plugin import Demand, GpuId, GpuView, NodeView, Reason, View
from policies.profiling import usable
from policies.rules import Filter

ANYBODY = Demand(1, alone=True, mps_uid=None, estimate=None, retry=None)
RESERVED = {"reservation", "reservation_notice", "reservation_ahead"}  # for somebody

Part = tuple[tuple[GpuView, ...], int]  # idle GPUs of a node, and the number usable


class Room:
    """Idle GPUs, node by node."""

    def __init__(self, parts: Iterable[Part]) -> None:
        parts = tuple(parts)
        self._nodes = [list(idle) for idle, _ in parts if idle]
        self._usable = sorted((count for _, count in parts), reverse=True)
        self.free = sum(map(len, self._nodes))

    def choose(self, wanted: Demand, view: View, fits: Filter) -> tuple[GpuView, ...]:
        """GPUs on the node with the fewest idle GPUs that has enough, to keep room for larger jobs;
        for a job that is too large for any node, on as few nodes as it could have. None if it has
        to wait for that."""
        for node in sorted(self._nodes, key=len):
            if len(node) >= wanted.gpus and (gpus := _first(wanted, node, view, fits)):
                return gpus
        fullest_first = sorted(self._nodes, key=lambda node: -len(node))
        gpus = _first(wanted, chain.from_iterable(fullest_first), view, fits)
        nodes = {gpu.gpu.node for gpu in gpus}
        return gpus if len(nodes) <= self._fewest(wanted.gpus) else ()

    def most(self, gpus: int) -> int:
        """Idle GPUs, on no more nodes than a job of this size may use."""
        return sum(sorted(map(len, self._nodes))[-self._fewest(gpus) :])

    def _fewest(self, gpus: int) -> int:
        """Nodes that have so many GPUs in use or idle."""
        return 1 + sum(count < gpus for count in accumulate(self._usable))

    def without(self, gpus: Collection[GpuView]) -> None:
        """Remove GPUs that were given to a job."""
        taken = {gpu.id for gpu in gpus}
        left = ([gpu for gpu in node if gpu.id not in taken] for node in self._nodes)
        self._nodes = [node for node in left if node]
        self.free = sum(map(len, self._nodes))

    def renew(self, view: View) -> None:
        """See the same GPUs in a later view."""
        self._nodes = [[view.gpu(gpu.id) for gpu in node] for node in self._nodes]


def idle_but(apart: frozenset[GpuId], view: View) -> Room:
    """All idle GPUs but these: those that some job could have to itself. Whether a certain job can
    depends on the job."""
    return Room(
        node.memo.recall((idle_but, apart), _part_of, node, view, lambda gpu: gpu.id not in apart)
        for node in view.nodes
    )


def idle_of(gpus: frozenset[GpuId], view: View) -> Room:
    """Those of `gpus` that are idle."""
    nodes = sorted({view.node_of[gpu] for gpu in gpus})
    return Room(_part_of(view.nodes[n], view, lambda gpu: gpu.id in gpus) for n in nodes)


def _part_of(node: NodeView, view: View, counts: Callable[[GpuView], bool]) -> Part:
    gpus = [gpu for gpu in node.gpus if counts(gpu)]
    idle = (
        gpu
        for gpu in gpus
        if not gpu.residents and all(each.code in RESERVED for each in refusals(ANYBODY, gpu, view))
    )
    return tuple(idle), sum(usable(gpu, view) for gpu in gpus)


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
