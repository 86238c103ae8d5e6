"""What operators work on and what they make: where their tensors are, whether outputs have storages
of their own, and a key by which outputs are remembered."""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .values import is_small

aten = torch.ops.aten
META = torch.device("meta")
ON_GPU, SMALL = 1, 2  # flags: there is such a tensor

GEMMS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))
# Operators that refuse tensors on different devices, unless one is a number (zero-dimensional); of
# all that do, those that meet a model's forgotten parameter or batch first.
# Not div: ctc_loss divides by lengths that PyTorch itself makes on the CPU here.
ONE_DEVICE = GEMMS | {
    aten.convolution.default,
    aten.embedding.default,
    aten.native_layer_norm.default,
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.nll_loss_forward.default,
    aten.nll_loss2d_forward.default,
    aten.binary_cross_entropy.default,
    aten.mse_loss.default,
    aten.cat.default,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
}
# How outputs come by their storages, as `kind_of` says.
KINDS: Dict[Any, str] = {aten._unsafe_view.default: "view"}  # not all schemas tell
KINDS.update((getattr(aten.set_, name), "other") for name in aten.set_.overloads())


def describe(values: Any, key: List[Any]) -> int:
    """Appends to `key` all that an operator's outputs depend on; says what tensors are among the
    values."""
    found = 0
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            found |= ON_GPU | SMALL if is_small(value) else ON_GPU
            key += (value.shape, _stride(value), value.dtype)
        elif value is None or kind is int:
            key.append(value)
        elif kind is list or kind is tuple:
            key += (kind, len(value))
            found |= describe(value, key)
        elif isinstance(value, torch.Tensor):
            found |= SMALL if is_small(value) else 0
            key += ("cpu", value.shape, _stride(value), value.dtype)
        else:
            key += (kind, value)
    return found


def leaves_gpu(func: Any, kwargs: Dict[str, Any]) -> bool:
    place = kwargs.get("device") if func is aten._to_copy.default else None
    return place is not None and torch.device(place).type != "cuda"


def check_devices(args: Any) -> None:
    """Raises what PyTorch raises if a tensor was left on the CPU. One is on the GPU."""
    for arg in args:
        for one in arg if isinstance(arg, (list, tuple)) else (arg,):
            on_gpu = isinstance(one, FakeTensor)  # most are, and their other answers take long
            if not on_gpu and isinstance(one, torch.Tensor) and one.is_cpu and one.dim():
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two"
                    " devices, cuda:0 and cpu!"
                )


def _stride(tensor: Any) -> Any:
    try:
        return tensor.stride()
    except RuntimeError:  # sparse: nothing else is like it
        return object()


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """A copy with `change` applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(change, part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([map_tensors(change, part) for part in value])
    return value


def as_meta(tensor: Any) -> Any:
    """Fake tensors are meta tensors already, inside; those on the CPU are real."""
    if isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def as_zeros(tensor: Any) -> Any:
    if not isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def recipe_of(tensor: Any) -> Optional[Tuple[Any, torch.dtype, Any]]:
    """What `Recorder.new` needs to make the tensor again; None if that would not be the same."""
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return None
    shape, stride = tuple(tensor.shape), tensor.stride()
    again = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=META)
    if again.untyped_storage().nbytes() != tensor.untyped_storage().nbytes():
        return None
    return shape, tensor.dtype, stride


def kind_of(func: Any) -> str:
    """How an operator's outputs come by their storages, by its schema; or that it is "composite":
    made of others, into which a tensor that unwraps itself (a DTensor) does not divide it."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(func.name(), "CompositeImplicitAutograd") and not has(func.name(), "CUDA"):
        KINDS[func] = "composite"
        return "composite"
    schema = func._schema
    aliases = [out.alias_info for out in schema.returns]
    written = [arg for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    kind = "other"  # the input's shape or size changes, or some outputs are new and some are not
    if torch.Tag.inplace_view not in func.tags:
        first = schema.arguments[0].name if schema.arguments else ""
        if written and written[0].name == first and all(aliases) and len(aliases) <= 1:
            kind = "in place"
        elif not any(aliases):
            kind = "function"
        elif not written and all(aliases):
            kind = "view"
    KINDS[func] = kind
    return kind
