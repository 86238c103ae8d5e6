"""How a job is split over its GPUs, and its iteration time for a given mapping (A-SRPT paper, III).
Nothing here looks for a mapping.

Times are in seconds, sizes in MiB, bandwidths in MiB/s; times and sizes are per iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from carmad.config import Links


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage: a part of the model. Each of its replicas trains on a part of the batch.

    A replica has one GPU, or with tensor parallelism one per slice.
    """

    replicas: int = 1
    forward_s: float = 0.0  # for a replica's mini-batch
    backward_s: float = 0.0
    in_mib: float = 0.0  # activations that a replica receives; gradients of that size go back
    out_mib: float = 0.0  # activations that it passes on
    weights_mib: float = 0.0  # trainable parameters
    tensor: int = 1  # slices per replica
    tensor_mib: float = 0.0  # all-reduced among the slices
    experts_mib: float = 0.0  # exchanged by each pair of replicas, on average


class Slot(NamedTuple):
    """What one of the job's GPUs runs."""

    stage: int
    replica: int
    slice: int


@dataclass(frozen=True)
class Layout:
    """A job without a layout counts as one stage with a replica on each GPU."""

    stages: tuple[Stage, ...]
    allreduce: Literal["ring", "tree"] = "ring"

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """One slot per GPU, in the order in which the job sees its GPUs."""
        return tuple(
            Slot(s, replica, slice)
            for s, stage in enumerate(self.stages)
            for replica in range(stage.replicas)
            for slice in range(stage.tensor)
        )

    @property
    def gpus(self) -> int:
        return sum(stage.replicas * stage.tensor for stage in self.stages)


def iteration_s(layout: Layout, servers: Sequence[Hashable], links: Links, size: int) -> float:
    """α, the iteration time of an asynchronous pipeline: that of its slowest stage, on the server
    where that takes longest (equations 4 to 7).

    `servers[v]` is the server of slot v. `size` is g, the number of GPUs of a server: each GPU that
    a stage has there entitles it to 1/g of the server's bandwidth.
    """
    on = [
        Counter(server for _, server in members)
        for _, members in groupby(
            zip(layout.slots, servers, strict=True), lambda member: member[0].stage
        )
    ]
    return max(
        _stage_s(layout.stages, on, s, server, links, size)
        for s in range(len(on))
        for server in on[s]
    )


def slowest_s(layout: Layout, links: Links, size: int) -> float:
    """α_max: every replica on its own server, with its slices together (VI)."""
    servers = [(slot.stage, slot.replica) for slot in layout.slots]
    return iteration_s(layout, servers, links, size)


def _stage_s(
    stages: Sequence[Stage],
    on: Sequence[Counter[Hashable]],
    s: int,
    server: Hashable,
    links: Links,
    size: int,
) -> float:
    """β. `on` counts the GPUs of each stage on each server."""
    stage, here, everywhere = stages[s], on[s][server], on[s].total()
    outside = inside = 0.0  # MiB per replica, both ways
    for mib, other in ((stage.in_mib, s - 1), (stage.out_mib, s + 1)):
        if 0 <= other < len(stages):
            near = on[other][server] / on[other].total()
            outside += 2 * mib * (1 - near)
            inside += 2 * mib * near
    outside += stage.experts_mib * (everywhere - here) / stage.tensor
    inside += stage.experts_mib * max(0.0, here / stage.tensor - 1)  # 0 for split slices
    # With n replicas here, both the data and the bandwidth are n times that of one replica, so n
    # cancels out.
    between_mib_s = stage.tensor / size * links.between_mib_s
    communication_s = outside / between_mib_s + inside / links.within_mib_s
    return (
        stage.forward_s
        + stage.backward_s
        + communication_s
        + _allreduce_s(stage, here, everywhere, links, size)
    )


def _allreduce_s(stage: Stage, here: int, everywhere: int, links: Links, size: int) -> float:
    """Equation 6 for the weights, plus the all-reduce of a replica's slices, all on one server.

    Each slice all-reduces its own part of the weights; the parts share the server's bandwidth."""
    k, t = stage.replicas, stage.tensor
    slices_s = 2 * (t - 1) / t * stage.tensor_mib / links.within_mib_s
    mib = 2 * (k - 1) / k * stage.weights_mib
    if here < everywhere:
        return slices_s + mib / (here / size * links.between_mib_s)
    return slices_s + mib / t / links.within_mib_s
