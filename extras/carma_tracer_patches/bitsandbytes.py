"""bitsandbytes: weights to quantize that are on the GPU already, as its parameters quantize
themselves on their way there, and a fake tensor cannot become one; products in 8 bits."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

MADE_FOR = "0.50"


def quantize(module: Any, tracer: Any) -> None:
    for kind in (module.Params4bit, module.Int8Params):
        tracer.replace(kind, __new__=_parameter(kind.__new__))
    ops = torch.ops.bitsandbytes
    if hasattr(ops, "int8_mixed_scaled_mm"):  # bitsandbytes 0.46
        tracer.answer(ops.int8_vectorwise_quant.default, _in_8_bits)
        tracer.answer(ops.int8_mixed_scaled_mm.default, _product_in_8_bits)


def _parameter(make: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, FakeTensor):
            if kwargs.get("bnb_quantized"):
                return torch.nn.Parameter(data, requires_grad=False)
            data = torch.empty(data.shape, dtype=data.dtype, device="cpu")
        return make(cls, data, *args, **kwargs)

    return new


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


PATCHES = {"bitsandbytes.nn.modules": quantize}
