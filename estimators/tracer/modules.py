"""What a trace learns from the modules that are called: the model's layers and, for an explanation,
which module and which line of the script allocated each storage."""

from __future__ import annotations

import re
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .answering import is_own, short_path
from .recording import Recorder
from .report import Layer
from .values import tensors


class Layers:
    """Use as `with Layers(recorder) as layers:` around the first forward pass, or more: modules
    count once. Also tells the recorder which storages are parameters and buffers, frozen ones
    included."""

    def __init__(self, recorder: Recorder) -> None:
        self.batch = 0  # the first dimension of the first tensor that a module was called with
        self._recorder = recorder
        self.layers: list[Layer] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __enter__(self) -> Layers:
        self._hook = register_module_forward_hook(self._note_call)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hook.remove()

    def label_gradients(self) -> None:
        """Call this where no optimizer has them."""
        own = (p for module in self._seen for p in module._parameters.values())
        self._recorder.label("gradients", (p.grad for p in own if p is not None))

    def _note_call(self, module: Any, inputs: Any, output: Any) -> None:
        if module in self._seen:
            return
        self._seen.add(module)
        own = [p for p in module._parameters.values() if p is not None]
        self._recorder.label("parameters", own)
        self._recorder.label("parameters", module._buffers.values())
        if not self.batch:
            self.batch = next((t.shape[0] for t in tensors(inputs) if t.dim()), 0)
        if own or not module._modules:
            elements = sum(t.numel() for t in tensors(output))
            layer = Layer(
                type(module).__name__,
                elements // (self.batch or 1),
                sum(p.numel() for p in own),
                inner=bool(module._modules),
            )
            self.layers.append(layer)


class Module(NamedTuple):
    name: str  # as in `named_modules` of the outermost one that is called
    kind: str  # its class
    parameters: int  # bytes of its own and its children's parameters
    has_children: bool


class Origin(NamedTuple):
    """Where a storage comes from."""

    module: int  # index in `modules` of the innermost one that was running; -1: none
    line: str  # of the script: train.py:12; "" in the backward pass, which no line calls
    backward: bool
    dtype: Any  # None: it belongs to no tensor


class Attribution:
    """Use as `with Attribution(recorder):`, inside the recorder. Adds events to the recorder's:

    ("enter", index) a module's forward pass begins; ("exit", (index, ids)) it ends, and these
    storages are its output.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.modules: list[Module] = []
        self.origins: dict[int, Origin] = {}
        self._recorder = recorder
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._running: list[int] = []
        self._own: dict[str, bool] = {}

    def __enter__(self) -> Attribution:
        self._recorder.witness = self.note_allocation
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave),
        ]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._recorder.witness = None
        for hook in self._hooks:
            hook.remove()

    def note_allocation(self, id: int, dtype: torch.dtype | None) -> None:
        module = self._running[-1] if self._running else -1
        backward = self._recorder.is_backward
        line = "" if backward else self._line(sys._getframe(2))
        self.origins[id] = Origin(module, line, backward, dtype)

    def _line(self, frame: FrameType | None) -> str:
        """The innermost one of the user's own code."""
        while frame is not None:
            file = frame.f_code.co_filename
            own = self._own.get(file)
            if own is None:
                own = self._own[file] = is_own(frame)
            if own:
                return f"{short_path(frame)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _enter(self, module: Any, inputs: Any) -> None:
        index = self._known.get(module)
        if index is None:
            index = self._meet(module)
        self._running.append(index)
        self._recorder.events.append(("enter", index))

    def _meet(self, module: Any) -> int:
        if module not in self._names:
            for name, one in module.named_modules():
                self._names.setdefault(one, name or type(module).__name__)
        size = sum(p.numel() * p.element_size() for p in module.parameters())
        name, kind = self._names[module], type(module).__name__
        self.modules.append(Module(name, kind, size, bool(module._modules)))
        self._known[module] = len(self.modules) - 1
        return len(self.modules) - 1

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        index = self._known.get(module, -1)
        while self._running and self._running.pop() != index:
            pass  # one that raised has no end
        ids = (self._recorder.id_of(tensor) for tensor in tensors(output))
        self._recorder.events.append(("exit", (index, tuple(id for id in ids if id is not None))))


def pattern(name: str) -> str:
    """The name of a module, with a star for each number: layer.3.attn is layer.*.attn."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
