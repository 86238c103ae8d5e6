"""tensorboardX, and TensorBoard's writer in PyTorch: a graph is drawn of what torch.jit recorded.
Here the model only runs once for it."""

from __future__ import annotations

from typing import Any

MADE_FOR = "2.6"


def draw_no_graph(module: Any, tracer: Any) -> None:
    def add_graph(writer: Any, model: Any, inputs: Any = (), *_: Any, **__: Any) -> None:
        model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)

    tracer.replace(module.SummaryWriter, add_graph=add_graph)


PATCHES = {"torch.utils.tensorboard.writer": draw_no_graph, "tensorboardX.writer": draw_no_graph}
