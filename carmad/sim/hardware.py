"""The GPUs of a simulated cluster: what kinds there are, and how many on which node."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU model."""

    name: str  # as in `--gpus 3xA100-40GB`
    memory_mib: int
    idle_w: float
    max_w: float
    speed: float  # of training relative to A100-40GB
    speeds: tuple[tuple[str, float], ...] = field(default=())  # by model family, where measured


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: GpuKind
    gpus: int


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Node, ...]
