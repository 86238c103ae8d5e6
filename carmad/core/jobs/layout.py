"""How a job is split over its GPUs, and its iteration time for a given mapping (A-SRPT paper, III).
Nothing here looks for a mapping.

Times are in seconds, sizes in MiB, bandwidths in MiB/s; times and sizes are per iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
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
    exposed_share: float = 1.0  # of the weights' all-reduce: not hidden by the backward pass
    microbatches: int = 0  # of a synchronous pipeline's batch; 0: it is asynchronous


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
    """α, the iteration time of a pipeline, with each stage on the server where it takes longest
    (equations 4 to 7). An asynchronous pipeline takes as long as its slowest stage. In a
    synchronous one the first micro-batch passes all stages, the others follow at the pace of the
    slowest stage, and then the weights are all-reduced.

    `servers[v]` is the server of slot v. `size` is g, the number of GPUs of a server: each GPU that
    a stage has there entitles it to 1/g of the server's bandwidth.
    """
    on = [
        Counter(server for _, server in members)
        for _, members in groupby(
            zip(layout.slots, servers, strict=True), lambda member: member[0].stage
        )
    ]
    stages = [
        [
            (
                _stage_s(layout.stages, on, s, server, links, size),
                _allreduce_s(stage, on[s][server], on[s].total(), links, size),
            )
            for server in on[s]
        ]
        for s, stage in enumerate(layout.stages)
    ]
    microbatches = max(stage.microbatches for stage in layout.stages)
    if not microbatches:
        return max(map(sum, chain.from_iterable(stages)))
    slowest = [max(stage_s for stage_s, _ in servers) for servers in stages]
    passing_s = (sum(slowest) + (microbatches - 1) * max(slowest)) / microbatches
    return passing_s + max(allreduce_s for _, allreduce_s in chain.from_iterable(stages))


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
    """β but for the all-reduce of the weights. `on` counts the GPUs of each stage on each server.
    The slices of a replica, all on one server, reduce what they compute."""
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
    slices_s = 2 * (stage.tensor - 1) / stage.tensor * stage.tensor_mib / links.within_mib_s
    return stage.forward_s + stage.backward_s + communication_s + slices_s


def _allreduce_s(stage: Stage, here: int, everywhere: int, links: Links, size: int) -> float:
    """Equation 6. Each slice all-reduces its own part of the weights; the parts share the server's
    bandwidth."""
    mib = 2 * (stage.replicas - 1) / stage.replicas * stage.weights_mib * stage.exposed_share
    if here < everywhere:
        return mib / (here / size * links.between_mib_s)
    return mib / stage.tensor / links.within_mib_s
