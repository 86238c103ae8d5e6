"""`model.cuda()` and its like, so that parameters stay who they are.

Whoever holds a parameter (an optimizer, a second layer with the same weights) must hold the moved
one. PyTorch lets it keep its identity by changing it in place, which it refuses between a real and
a fake tensor; there the two change places instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
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
        _swap(tensor, value)


def _swap(parameter: Any, value: Any) -> None:
    """Keeps what libraries have set on the parameter, such as its quantization."""
    new = Parameter(value, parameter.requires_grad)
    vars(new).update((k, v) for k, v in vars(parameter).items() if k not in _of_fakes())
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, hooks, None):
            setattr(new, hooks, getattr(parameter, hooks))
    # As torch.utils.swap_tensors, which refuses where there are weak references: they may stay.
    parameter.__class__, new.__class__ = new.__class__, parameter.__class__
    parameter.__dict__, new.__dict__ = new.__dict__, parameter.__dict__
    torch._C._swap_tensor_impl(parameter, new)


@cache
def _of_fakes() -> frozenset[str]:
    """Attributes that every fake parameter has."""
    meta = torch.empty(0, device="meta")
    return frozenset((*vars(FakeTensor(FakeTensorMode(), meta, meta.device)), "_is_param"))


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
            elif parameter._use_count() > 2:  # a graph refers to it: nobody trains it now
                parameter = module._parameters[key] = Parameter(changed, parameter.requires_grad)
            else:
                _swap(parameter, changed)
        if gradient is not None:
            with torch.no_grad():
                parameter.grad = change(gradient)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = change(buffer)
    return module
