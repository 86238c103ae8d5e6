"""Contents of GPU tensors of integers and truth values, where they are known.

Lengths, labels, masks and flags that a script made from what it has on the CPU decide how often a
loop turns and how much a mask selects. Operators on them are run on the CPU as well, as long as all
their operands are known. What a model computes is not; random integers are drawn here, as one draw
is as good as another.
"""

from typing import Any, Callable, Dict, List

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
_CPU = torch.device("cpu")  # always said: the script may have set another default
MOST = 1 << 16  # elements
DISCRETE = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
# Their results do not depend on the contents of tensors among their operands.
_MAKERS = frozenset(
    getattr(aten, f"{before}{name}{after}")
    for name in ("full", "zeros", "ones")
    for before, after in (("", ""), ("new_", ""), ("", "_like"))
) | {aten.arange, aten.scalar_tensor}
_DRAWS = frozenset((aten.randint, aten.randint_like, aten.randperm))
# What nobody has written to yet is zero.
_EMPTY = frozenset(
    (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided)
)
# One operand that is this throughout settles the result.
_SETTLED = {
    aten.bitwise_and: False,
    aten.logical_and: False,
    aten.mul: False,
    aten.bitwise_or: True,
    aten.logical_or: True,
}


class _Unknown(Exception):
    """The contents of an operand are not known."""


class Values:
    """`kept`: gives what the Recorder keeps of a tensor's storage, or None. Its `value` is a real
    storage with the same contents, or None."""

    def __init__(self, kept: Callable[[Any], Any]) -> None:
        self._kept = kept

    def of(self, tensor: Any) -> Any:
        """A real tensor with the contents of this one on the GPU; a view of it is one of this.
        None if they are not known."""
        if tensor.dtype not in DISCRETE or tensor.layout is not torch.strided:
            return None
        kept = self._kept(tensor)
        if kept is None or kept.value is None:
            return None
        bare = torch.empty(0, dtype=tensor.dtype, device=_CPU)
        return bare.set_(kept.value, tensor.storage_offset(), tensor.shape, tensor.stride())

    def keep(self, tensor: Any, real: Any) -> Any:
        """Record the contents of a new tensor on the GPU."""
        kept = self._kept(tensor)
        if kept is not None and kept.nbytes == tensor.numel() * tensor.element_size():
            like = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU
            )
            kept.value = like.copy_(real).untyped_storage()
        return tensor

    def result(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """An operator's result; None if it is not known. What it writes to is changed as well."""
        if torch.Tag.nondeterministic_seeded in func.tags and func.overloadpacket not in _DRAWS:
            return None
        try:
            return self._run(func, args, kwargs)
        except (_Unknown, RuntimeError, IndexError):  # the CPU may have no such operator
            return None

    def follow(self, func: Any, args: Any, kwargs: Dict[str, Any], out: Any) -> None:
        """Call this after an operator has run on the GPU."""
        written = [
            kwargs.get(arg.name) if arg.kwarg_only else args[at] if at < len(args) else None
            for at, arg in enumerate(func._schema.arguments)
            if arg.alias_info and arg.alias_info.is_write
        ]
        if written:
            if self.result(func, args, kwargs) is None:
                self.forget(written)
        elif isinstance(out, FakeTensor) and out.dtype in DISCRETE and out.numel() <= MOST:
            kept = self._kept(out)
            if kept is not None and kept.value is None:  # it is no view of what is known
                real = self.result(func, args, kwargs)
                real = self._settle(func, args, out) if real is None else real
                if real is not None:
                    self.keep(out, real)

    def _run(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        made = func.overloadpacket in _MAKERS | _EMPTY | _DRAWS
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _CPU}
        elif not made and not _tensors(args):
            raise _Unknown
        result = func(*self._real(args, made), **self._real(kwargs, made))
        return result.zero_() if func.overloadpacket in _EMPTY else result

    def _real(self, value: Any, made: bool) -> Any:
        if isinstance(value, FakeTensor):
            if made:
                return torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=_CPU
                )
            real = self.of(value)
            if real is None:
                raise _Unknown
            return real
        if isinstance(value, torch.Tensor) and (value.numel() > MOST or value.is_sparse):
            raise _Unknown
        if isinstance(value, dict):
            return {name: self._real(part, made) for name, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)([self._real(part, made) for part in value])
        return value

    def _settle(self, func: Any, args: Any, out: Any) -> Any:
        by = _SETTLED.get(func.overloadpacket)
        for arg in args[:2] if by is not None else ():
            real = self.of(arg) if isinstance(arg, FakeTensor) else None
            if real is not None and bool((real.all() if by else ~real.any()).item()):
                return torch.full(out.shape, by, dtype=out.dtype, device=_CPU)
        return None

    def forget(self, written: Any) -> None:
        """Call this for what something else wrote to."""
        for tensor in _tensors(written):
            kept = self._kept(tensor) if isinstance(tensor, FakeTensor) else None
            if kept is not None:
                kept.value = None


def _tensors(value: Any) -> List[Any]:
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if isinstance(value, torch.Tensor) else []
