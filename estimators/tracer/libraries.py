"""Patches to libraries that the script may import, applied when it does."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import substitutes


def _generation(module: Any) -> None:
    """Beam search goes on until all beams are as long as they may be: whether they could still
    improve depends on scores, of which there are none."""

    def unfinished(
        improvable: Any, sent: Any, next_token_hits_stopping_criteria: Any, early_stopping: Any
    ) -> bool:
        return not bool(torch.all(next_token_hits_stopping_criteria))

    mixin = module.GenerationMixin
    if hasattr(mixin, "_beam_search_has_unfinished_sequences"):  # transformers 4.50
        mixin._beam_search_has_unfinished_sequences = staticmethod(unfinished)


def _deepspeed(module: Any) -> None:
    """Every step is taken: overflow depends on the gradients' values, which are unknown."""
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "CheckOverflow"):
        for check in ("has_overflow", "check_using_norm"):
            if hasattr(owner := getattr(module, name, None), check):
                setattr(owner, check, lambda *_, **__: False)


def _bitsandbytes(module: Any) -> None:
    """Weights to quantize that are on the GPU already: its parameters quantize themselves on their
    way there, and a fake tensor cannot become one."""
    for kind in (module.Params4bit, module.Int8Params):
        kind.__new__ = _parameter(kind.__new__)
    ops = torch.ops.bitsandbytes
    if hasattr(ops, "int8_mixed_scaled_mm"):  # bitsandbytes 0.46
        substitutes.ANSWERS[ops.int8_vectorwise_quant.default] = _in_8_bits
        substitutes.ANSWERS[ops.int8_mixed_scaled_mm.default] = _product_in_8_bits


def _in_8_bits(recorder: Any, tensor: Any, threshold: float = 0.0) -> Any:
    """The tensor, a scale for each row, and which columns have outliers."""
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    outliers = None
    if threshold > 0:
        recorder.note("one in a hundred columns is taken to have outliers, which stay in 16 bits")
        outliers = recorder.new((columns // 100,), torch.int64)
    values = recorder.new(tensor.shape, torch.int8)
    return values, recorder.new((rows,), torch.float32), outliers


def _product_in_8_bits(
    recorder: Any, tensor: Any, quantized: Any, weight: Any, scales: Any, others: Any, *rest: Any
) -> Any:
    """It is in 32 bits at first; also returned is what of the input has outliers."""
    *rows, _ = quantized.shape
    out = recorder.new((*rows, weight.shape[0]), tensor.dtype)
    recorder.release([recorder.hold(4 * out.numel())])
    outliers = rest[0].numel() if rest and rest[0] is not None else 0
    return out, recorder.new((math.prod(rows), outliers), tensor.dtype)


def _parameter(make: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, FakeTensor):
            if kwargs.get("bnb_quantized"):
                return torch.nn.Parameter(data, requires_grad=False)
            data = torch.empty(data.shape, dtype=data.dtype, device="cpu")
        return make(cls, data, *args, **kwargs)

    return new


_PATCHES: dict[str, Callable[[Any], None]] = {
    "bitsandbytes.nn.modules": _bitsandbytes,
    "transformers.generation.utils": _generation,
    "deepspeed.runtime.utils": _deepspeed,
    "deepspeed.runtime.zero.stage3": _deepspeed,
    "deepspeed.runtime.zero.stage_1_and_2": _deepspeed,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = _PATCHES.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    sys.meta_path.insert(0, _Finder())
