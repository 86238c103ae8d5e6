"""`model.cuda()` and its like, so that parameters stay who they are.

Whoever holds a parameter (an optimizer, a second layer with the same weights) must hold the moved
one. PyTorch lets it keep its identity by changing it in place, which it refuses between a real and
a fake tensor; there the two change places instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Module, Parameter


def install() -> None:
    if hasattr(torch.utils, "swap_tensors"):  # torch 2.3
        Module._apply = _apply
        torch.Tensor.data = property(_data.__get__, _set_data)


_data = torch._C.TensorBase.data


def _set_data(tensor: Any, value: Any) -> None:
    """`parameter.data = parameter.data.cuda()`: in place, as above."""
    if isinstance(value, FakeTensor) == isinstance(tensor, FakeTensor):
        _data.__set__(tensor, value)
    else:
        torch.utils.swap_tensors(tensor, Parameter(value, tensor.requires_grad))


def _apply(module: Any, change: Any, recurse: bool = True) -> Any:
    """As `Module._apply`: `change` maps a tensor to the moved or converted one."""
    if recurse:
        for child in module.children():
            child._apply(change)
    for key, parameter in module._parameters.items():
        if parameter is None:
            continue
        gradient, parameter.grad = parameter.grad, None
        with torch.no_grad():
            changed = change(parameter)
        if changed is not parameter:
            if isinstance(changed, FakeTensor) == isinstance(parameter, FakeTensor):
                parameter.data = changed
            else:
                moved = Parameter(changed, parameter.requires_grad)
                try:
                    torch.utils.swap_tensors(parameter, moved)
                except RuntimeError:  # a graph refers to it: nobody trains it while that exists
                    module._parameters[key] = parameter = moved
        if gradient is not None:
            with torch.no_grad():
                parameter.grad = change(gradient)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = change(buffer)
    return module
