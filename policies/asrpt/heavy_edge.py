"""Heavy-Edge: which part of a job runs on which server (A-SRPT paper, IV-B and VI).

A job is a graph: a vertex for each slot of its layout, an edge for each pair of slots that
communicate, weighted by the MiB per iteration. Servers are filled one after the other along the
heaviest edges. Where the paper chooses at random, the lowest slot is chosen, so the result is
deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

from carmad.plugin import Layout, Links, Stage, iteration_s, slowest_s

COMM_HEAVY = 1.5  # α_max / α̃_min from which a job counts as communication-heavy (IV-C)

Pair = tuple[int, int]  # slots, the lower one first


class Graph(NamedTuple):
    edges: tuple[Pair, ...]  # heaviest first; ties by lowest slots
    weights: tuple[dict[int, float], ...]  # per slot, the weights of edges to its neighbours
    slices: tuple[range, ...]  # per slot, the slices of its replica, which stay together (VI)


class Extremes(NamedTuple):
    """The fastest and slowest iteration of a job over all mappings."""

    fastest_s: float  # α̃_min
    slowest_s: float  # α_max
    width: int  # GPUs that must be on one server; 1 also if no server could hold them

    @property
    def heavy(self) -> bool:
        """Whether the job is communication-heavy (IV-C)."""
        return self.slowest_s > 0 and self.slowest_s >= COMM_HEAVY * self.fastest_s


class Mapping(NamedTuple):
    servers: tuple[int, ...]  # per slot
    iteration_s: float  # α
    whole: bool  # no replica's tensor slices are split over servers


def heavy_edge(layout: Layout, room: Sequence[int]) -> tuple[int, ...]:
    """For each slot the index of its server in `room`, which has the GPUs taken on each server.

    These must add up to the layout's. A replica's slices are split over servers only if no
    alternative was found.
    """
    by_room = sorted(range(len(room)), key=lambda server: -room[server])
    mapped = _map(layout, tuple(room[server] for server in by_room))
    return tuple(by_room[at] for at in mapped)


def whole(layout: Layout, servers: Sequence[int]) -> bool:
    """Whether all tensor slices of each replica are on one server."""
    on: dict[Pair, int] = {}
    slots = zip(layout.slots, servers, strict=True)
    return all(on.setdefault((s.stage, s.replica), server) == server for s, server in slots)


@lru_cache(maxsize=4096)
def extremes(layout: Layout, links: Links, size: int) -> Extremes:
    """The extremes on servers of `size` GPUs."""
    best = _best(layout, links, size)
    width = _width(layout) if best.whole else 1
    return Extremes(best.iteration_s, slowest_s(layout, links, size), width)


@lru_cache(maxsize=16_384)
def mapping(layout: Layout, room: tuple[int, ...], links: Links, size: int) -> Mapping:
    """Heavy-Edge's mapping to servers with `room` GPUs each."""
    servers = heavy_edge(layout, room)
    return Mapping(servers, iteration_s(layout, servers, links, size), whole(layout, servers))


def _best(layout: Layout, links: Links, size: int) -> Mapping:
    """The mapping to the fewest servers, all full but the last. A server is full if no further
    replica's slices fit."""
    usable = size // _width(layout) * _width(layout) or size
    room, left = [], layout.gpus
    while left:
        room.append(left if left <= size else usable)
        left -= room[-1]
    return mapping(layout, tuple(room), links, size)


def _width(layout: Layout) -> int:
    return max(stage.tensor for stage in layout.stages)


@lru_cache(maxsize=4096)
def _map(layout: Layout, room: tuple[int, ...]) -> tuple[int, ...]:
    """`room` is in descending order."""
    graph = _graph(layout)
    edges = iter(graph.edges)  # an edge skipped for one server is of no use to later ones
    free = dict.fromkeys(range(layout.gpus))  # the slots that have no server yet
    mapped = [0] * layout.gpus
    for server, gpus in enumerate(room):
        chosen = list(free) if gpus == len(free) else _fill(graph, edges, free, gpus)
        for slot in chosen:
            mapped[slot] = server
    if whole(layout, mapped):
        return tuple(mapped)
    return _pack(graph, room) or tuple(mapped)


def _pack(graph: Graph, room: tuple[int, ...]) -> tuple[int, ...] | None:
    """Best-fit, widest replicas first, ignoring communication: for when following the heaviest
    edges leaves a replica without room. None if that fails, too."""
    left = list(room)
    mapped = [0] * len(graph.slices)
    for replica in sorted(set(graph.slices), key=lambda slots: (-len(slots), slots.start)):
        fitting = [at for at, gpus in enumerate(left) if gpus >= len(replica)]
        if not fitting:
            return None
        server = min(fitting, key=left.__getitem__)
        left[server] -= len(replica)
        for slot in replica:
            mapped[slot] = server
    return tuple(mapped)


def _fill(graph: Graph, edges: Iterator[Pair], free: dict[int, None], gpus: int) -> list[int]:
    """The slots for a server, removed from `free`."""
    chosen: list[int] = []
    reach: dict[int, float] = {}  # of free slots, their heaviest edge into the server
    wanted = _first(graph, edges, free, gpus)
    while left := gpus - len(chosen):
        slot = wanted.pop(0) if wanted else _next(graph, reach, free, left)
        for taken in [each for each in graph.slices[slot] if each in free][:left]:
            chosen.append(taken)
            del free[taken]
            reach.pop(taken, None)
            for other, weight in graph.weights[taken].items():
                if other in free and weight > reach.get(other, 0.0):
                    reach[other] = weight
    return chosen


def _first(graph: Graph, edges: Iterator[Pair], free: Iterable[int], gpus: int) -> list[int]:
    """The first slots: for a server with one GPU the one that communicates least, otherwise the
    pair that communicates most."""
    if gpus == 1:
        return [min(_fitting(graph, free, 1), key=lambda slot: sum(graph.weights[slot].values()))]
    for one, other in edges:
        needed = len(graph.slices[one]) + len(graph.slices[other])
        if one in free and other in free and needed <= gpus:
            return [one, other]
    return []


def _next(graph: Graph, reach: dict[int, float], free: Iterable[int], left: int) -> int:
    if fitting := [slot for slot in reach if len(graph.slices[slot]) <= left]:
        return min(fitting, key=lambda slot: (-reach[slot], slot))
    return min(_fitting(graph, free, left), key=lambda slot: (-len(graph.slices[slot]), slot))


def _fitting(graph: Graph, free: Iterable[int], left: int) -> list[int]:
    """The slots whose whole replica fits; all, if none does."""
    return [slot for slot in free if len(graph.slices[slot]) <= left] or list(free)


@lru_cache(maxsize=1024)
def _graph(layout: Layout) -> Graph:
    weights: dict[Pair, float] = defaultdict(float)
    stages: list[list[range]] = []  # by stage and replica, the slots
    begin = 0
    for stage in layout.stages:
        end = begin + stage.replicas * stage.tensor
        stages.append([range(at, at + stage.tensor) for at in range(begin, end, stage.tensor)])
        begin = end
    for s, (stage, replicas) in enumerate(zip(layout.stages, stages, strict=True)):
        told = [*_within(stage, replicas, layout.allreduce)]
        if s:
            told += _between(layout.stages[s - 1], stage, stages[s - 1], replicas)
        for pair, mib in told:
            weights[pair] += mib
    heavy = {pair: mib for pair, mib in weights.items() if mib > 0}
    neighbours: tuple[dict[int, float], ...] = tuple({} for _ in range(begin))
    for (one, other), mib in heavy.items():
        neighbours[one][other] = neighbours[other][one] = mib
    edges = sorted(heavy, key=lambda pair: (-heavy[pair], pair))
    slices = (replica for replicas in stages for replica in replicas for _ in replica)
    return Graph(tuple(edges), neighbours, tuple(slices))


def _between(
    before: Stage, after: Stage, senders: list[range], takers: list[range]
) -> Iterator[tuple[Pair, float]]:
    """Activations and gradients, spread evenly over all pairs of replicas (and of their slices).

    A stage's output is the next one's input; of the user's two figures, the larger counts.
    """
    mib = 2 * max(before.out_mib / after.replicas, after.in_mib / before.replicas)
    for sender, taker in product(senders, takers):
        for pair in product(sender, taker):
            yield pair, mib / (before.tensor * after.tensor)


def _within(stage: Stage, replicas: list[range], allreduce: str) -> Iterator[tuple[Pair, float]]:
    """The all-reduce among equal slices, and the exchange between experts."""
    k = stage.replicas
    mib = 2 * (k - 1) / k * stage.weights_mib / stage.tensor
    pairs = _ring(k) if allreduce == "ring" else _trees(k)
    for one, other in pairs:
        for pair in zip(replicas[one], replicas[other], strict=True):
            yield pair, mib if allreduce == "ring" else mib / 2
    if stage.experts_mib:
        for left, right in combinations(replicas, 2):
            for pair in product(left, right):
                yield pair, stage.experts_mib / stage.tensor**2


def _ring(k: int) -> Iterator[Pair]:
    """Two replicas have one edge, not two; its weight is what each of them sends."""
    for one in range(k - 1):
        yield one, one + 1
    if k > 2:
        yield 0, k - 1


def _trees(k: int) -> Iterator[Pair]:
    """Double binary trees: the second is the first, mirrored if k is even and shifted by one if it
    is odd, so that a leaf of one is an inner node of the other (NCCL 2.4)."""
    for child in range(1, k):
        edge = child, _parent(child, k)
        if k % 2 == 0:
            twin = k - 1 - edge[0], k - 1 - edge[1]
        else:
            twin = (edge[0] + 1) % k, (edge[1] + 1) % k
        for one, other in (edge, twin):
            yield min(one, other), max(one, other)


def _parent(rank: int, k: int) -> int:
    """The parent in the binary tree with root 0 whose leaves are the odd ranks: the lowest set bit
    moves one to the left, or is cleared if that leads outside."""
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return up if up < k else rank ^ bit
