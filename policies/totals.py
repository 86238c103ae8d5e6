"""How many GPUs a view has: in service, idle, and on the largest server."""

from __future__ import annotations

from typing import NamedTuple

from carmad.plugin import GpuView, NodeView, Settings, View, idle


class Totals(NamedTuple):
    usable: int  # GPUs that are neither drained nor faulty
    idle: int  # the unused ones among them
    size: int  # GPUs of the largest server (island)


def totals(view: View) -> Totals:
    settings = view.settings
    counted = [node.memo.recall(_count, _count, node, settings) for node in view.nodes]
    usable, idle, sizes = zip(Totals(0, 0, 0), *counted, strict=True)
    return Totals(sum(usable), sum(idle), max(sizes))


def _count(node: NodeView, settings: Settings) -> Totals:
    usable = [gpu for gpu in node.gpus if not _out_of_service(gpu)]
    islands = [gpu.gpu.island for gpu in node.gpus]
    free = sum(idle(gpu, settings) is None for gpu in usable)
    return Totals(len(usable), free, max(map(islands.count, islands)))


def _out_of_service(gpu: GpuView) -> bool:
    return gpu.drained is not None or bool(gpu.sample and gpu.sample.fault)
