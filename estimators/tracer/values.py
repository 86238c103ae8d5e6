"""Contents of small GPU tensors, where they are known.

Lengths, labels, masks, scales and schedules that a script made from what it has on the CPU decide
how often a loop turns and how much a mask selects. Operators on them are run on the CPU as well, as
long as all their operands are known. What a model computes is not, nor is what requires gradients:
both are large, or depend on what is. Random numbers are drawn here, as one draw is as good as
another.
"""

from functools import lru_cache
from math import isinf
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
_CPU = torch.device("cpu")  # always said: the script may have set another default
DISCRETE = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
MOST, MOST_FLOATS = 1 << 18, 1 << 12  # elements
LEFT_EMPTY = 1 << 16  # bytes: what nobody fills, or fills with random numbers, if on the CPU
# What they write does not depend on what was there.
_OVERWRITES = frozenset(
    (
        *(aten.fill_, aten.zero_, aten.copy_, aten.normal_, aten.uniform_, aten.random_),
        *(aten.exponential_, aten.log_normal_, aten.cauchy_, aten.geometric_),
    )
)
# Their results do not depend on the contents of tensors among their operands.
_EMPTY = frozenset(
    (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided)
)
_MAKERS = _EMPTY | {
    getattr(aten, f"{before}{name}{after}")
    for name in ("full", "zeros", "ones", "rand", "randn", "randint")
    for before, after in (("", ""), ("new_", ""), ("", "_like"))
    if hasattr(aten, f"{before}{name}{after}")
}
# One operand that is this throughout settles the result.
_SETTLED = {
    aten.bitwise_and: False,
    aten.logical_and: False,
    aten.mul: False,
    aten.bitwise_or: True,
    aten.logical_or: True,
}
COMPARES = frozenset((aten.eq, aten.ne, aten.isnan, aten.isinf))
# A gradient scaler's search for infinite gradients: none is found.
_SCALER = getattr(aten, "_amp_foreach_non_finite_check_and_unscale_", None)
_CHANGED = frozenset(("running_mean", "running_var"))  # by all batch norms: not all schemas tell
_NEEDS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class _Unknown(Exception):
    """The contents of an operand are not known."""


def is_small(tensor: Any) -> bool:
    """Whether contents of its kind are kept."""
    count = tensor.numel()
    return bool(count <= MOST_FLOATS or (count <= MOST and tensor.dtype in DISCRETE))


@lru_cache(maxsize=None)
def needs_values(func: Any) -> bool:
    """Whether an operator's result, or its shape, says what its operands contain."""
    return any(tag in func.tags for tag in _NEEDS)


class Values:
    """`kept`: gives what the Recorder keeps of a tensor's storage, or None. Its `value` is a real
    storage with the same contents, or None."""

    def __init__(self, kept: Callable[[Any], Any]) -> None:
        self._kept = kept

    def of(self, tensor: Any) -> Any:
        """A real tensor with the contents of this one on the GPU; a view of it is one of this.
        None if they are not known."""
        if tensor.layout is not torch.strided:
            return None
        kept = self._kept(tensor)
        if kept is None or kept.value is None or tensor.requires_grad:
            return None
        if tensor.is_conj() or tensor.is_neg():  # of what is there
            return None
        bare = torch.empty(0, dtype=tensor.dtype, device=_CPU)
        return bare.set_(kept.value, tensor.storage_offset(), tensor.shape, tensor.stride())

    def keep(self, tensor: Any, real: Any) -> Any:
        """Record the contents of a new tensor on the GPU."""
        kept = self._kept(tensor)
        is_whole = kept is not None and kept.nbytes == tensor.numel() * tensor.element_size()
        # Some of the CPU's kernels have outputs of another shape.
        if is_whole and is_small(tensor) and real.shape == tensor.shape:
            like = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU
            )
            kept.value = like.copy_(real).untyped_storage()
        return tensor

    def result(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """An operator's result; None if it is not known. What it writes to is changed as well."""
        try:
            return self._run(func, args, kwargs)
        except (_Unknown, RuntimeError, IndexError, TypeError, ValueError):  # perhaps the CPU's
            return None

    def follow(self, func: Any, args: Any, kwargs: Dict[str, Any], out: Any) -> None:
        """Call this after an operator has run on the GPU. No view is new."""
        outs = [one for one in tensors(out) if self._may_be_kept(one)]
        written = _writes(func)
        if not outs and not written:
            return
        real = self.result(func, args, kwargs)
        if real is None:
            for name, at in written[:1] if func.overloadpacket is _SCALER else written:
                self.forget((*args[at : at + 1], kwargs.get(name)))
        if real is None and outs and outs[0].dtype in DISCRETE:
            real = self._settle(func, args, outs[0])
        if real is not None:
            for one, contents in zip(tensors(out), tensors(real)):
                if self._may_be_kept(one):
                    self.keep(one, contents)

    def _may_be_kept(self, tensor: Any) -> bool:
        """Whether it is on the GPU, small, and no view of what is known."""
        plain = isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
        if not plain or tensor.dtype.is_complex or not is_small(tensor):
            return False
        kept = self._kept(tensor)
        return kept is not None and kept.value is None

    def _run(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        if func.namespace != "aten":  # it may be a script's own, and know that it is on the CPU
            raise _Unknown
        made = func.overloadpacket in _MAKERS
        if func.overloadpacket in _OVERWRITES:
            args = (self._target(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _CPU}
        elif not made and not tensors(args):
            raise _Unknown
        result = func(*self._real(args, made), **self._real(kwargs, made))
        if func.overloadpacket not in _EMPTY:
            return () if result is None else result
        if result.dtype not in DISCRETE:
            raise _Unknown  # it is often filled by what is not run here
        return result.zero_()

    def _target(self, tensor: Any) -> Any:
        """For what is to be overwritten."""
        if not isinstance(tensor, FakeTensor) or not is_small(tensor):
            raise _Unknown
        real = self.of(tensor)
        if real is None:
            self.forget(tensor)
            real = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU
            )
        return real

    def _real(self, value: Any, made: bool) -> Any:
        if isinstance(value, FakeTensor):
            if made and not value.requires_grad:
                return torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=_CPU
                )
            real = self.of(value) if is_small(value) else None
            if real is None:
                raise _Unknown
            return real
        if isinstance(value, torch.Tensor):
            if value.requires_grad or value.layout is not torch.strided or not is_small(value):
                raise _Unknown
            if value.is_floating_point() and value.untyped_storage().nbytes() >= LEFT_EMPTY:
                raise _Unknown  # a part of what `substitutes` may have left empty
            return value
        if isinstance(value, dict):
            return {name: self._real(part, made) for name, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)([self._real(part, made) for part in value])
        return value

    def _settle(self, func: Any, args: Any, out: Any) -> Any:
        if func.overloadpacket in COMPARES:
            holds = _compare_finite(func.overloadpacket, *args)
            return None if holds is None else torch.full(out.shape, holds, device=_CPU)
        by = _SETTLED.get(func.overloadpacket)
        if by and out.dtype is not torch.bool:
            return None
        for arg in args[:2] if by is not None else ():
            real = self.of(arg) if isinstance(arg, FakeTensor) else None
            if real is not None and bool((real.all() if by else ~real.any()).item()):
                return torch.full(out.shape, by, dtype=out.dtype, device=_CPU)
        return None

    def forget(self, written: Any) -> None:
        """Call this for what something else wrote to."""
        for tensor in tensors(written):
            plain = isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
            kept = self._kept(tensor) if plain else None
            if kept is not None:
                kept.value = None


def _compare_finite(name: Any, one: Any, other: Any = None) -> Optional[bool]:
    """What a comparison says of numbers that are finite; None if that depends on them. `isfinite`
    comes as two: `x == x`, and `abs(x) != inf`."""
    if name in (aten.isnan, aten.isinf):
        return False
    if other is one or (type(other) is float and isinf(other)):
        return (other is one) is (name is aten.eq)
    return None


@lru_cache(maxsize=None)
def _writes(func: Any) -> List[Tuple[str, int]]:
    """Names and places of the arguments that an operator writes to."""
    return [
        (arg.name, at)
        for at, arg in enumerate(func._schema.arguments)
        if (arg.alias_info and arg.alias_info.is_write)
        or arg.name in _CHANGED
        or func.namespace == "c10d"  # whose schemas do not tell
    ]


def tensors(value: Any) -> List[Any]:
    """Those in it, at any depth of the usual containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors(part)]
    return []
