"""Servers in the sense of the A-SRPT paper: GPUs of a node that are close to each other (islands).

Chooses GPUs for a job by how many are free on each server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from carmad.plugin import Demand, GpuId, NodeView, View
from policies.ranked import Ranked

Server = tuple[GpuId, ...]  # the GPUs that a job can use, by index


@dataclass(frozen=True, slots=True, eq=False)
class Unshared(Ranked):
    """Places jobs alone on their GPUs, like the baselines, choosing GPUs server by server."""

    def servers(self, wanted: Demand, view: View) -> list[Server]:
        """Servers with admissible GPUs for the job."""
        question = (self, "islands", wanted)
        found = (
            node.memo.recall(question, self._islands, node, wanted, view) for node in view.nodes
        )
        return list(chain.from_iterable(found))

    def _islands(self, node: NodeView, wanted: Demand, view: View) -> tuple[Server, ...]:
        island = {gpu.id: gpu.gpu.island for gpu in node.gpus}
        fit = node.memo.recall((self, wanted), self._fit, node, wanted, view)
        servers: dict[str, list[GpuId]] = {}
        for gpu in fit.gpus:
            servers.setdefault(island[gpu], []).append(gpu)
        return tuple(map(tuple, servers.values()))


def most_available(servers: Iterable[Server]) -> list[Server]:
    return sorted(servers, key=lambda server: -len(server))


def least_available(servers: Iterable[Server]) -> list[Server]:
    return sorted(servers, key=len)


def closest(servers: Sequence[Server], gpus: int) -> list[Server]:
    """The server with the fewest sufficient GPUs; otherwise as few servers as possible."""
    enough = [server for server in servers if len(server) >= gpus]
    return [min(enough, key=len)] if enough else most_available(servers)


def take(servers: Iterable[Server], gpus: int, width: int = 1) -> list[Server]:
    """`gpus` GPUs of the servers in this order, a multiple of `width` on each if there are enough;
    none if there are too few."""
    parts: list[Server] = []
    for server in servers:
        part = server[: gpus if gpus <= len(server) else len(server) // width * width]
        if part:
            parts.append(part)
            gpus -= len(part)
        if not gpus:
            return parts
    return []
