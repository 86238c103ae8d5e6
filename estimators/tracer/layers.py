"""The summary of a model: its modules that have no children or parameters of their own (as timm's
BatchNormAct2d), in the order in which their first calls end."""

from typing import Any, Dict, Iterable, List, Optional

import torch
from torch.nn.modules.module import register_module_forward_hook

from .recording import Recorder
from .report import Layer


class Layers:
    """Use as `with Layers(recorder) as layers:` around the first forward pass, or more: modules
    count once. Also tells the recorder which storages are parameters and buffers, frozen ones
    included."""

    def __init__(self, recorder: Recorder) -> None:
        self.batch = 0  # the first dimension of the first tensor that a module was called with
        self._recorder = recorder
        self._seen: Dict[int, Optional[Layer]] = {}
        self._alive: List[Any] = []  # an id is of one module as long as it lives

    def __enter__(self) -> "Layers":
        self._hook = register_module_forward_hook(self._called)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hook.remove()

    @property
    def layers(self) -> List[Layer]:
        return [layer for layer in self._seen.values() if layer is not None]

    def _called(self, module: Any, inputs: Any, output: Any) -> None:
        if id(module) in self._seen:
            return
        self._alive.append(module)
        own = [p for p in module._parameters.values() if p is not None]
        self._recorder.label("parameters", own)
        self._recorder.label("parameters", module._buffers.values())
        if not self.batch:
            self.batch = next((t.shape[0] for t in tensors(inputs) if t.dim()), 0)
        layer = None
        if own or not module._modules:
            elements = sum(t.numel() for t in tensors(output))
            layer = Layer(
                type(module).__name__,
                elements // (self.batch or 1),
                sum(p.numel() for p in own),
                inner=bool(module._modules),
            )
        self._seen[id(module)] = layer


def tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
