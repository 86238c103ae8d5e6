"""apex: its compiled modules are not loaded. Its optimizers' kernels work in place; its layer norms
are answered by shape."""

from __future__ import annotations

import math
from typing import Any

import torch

MADE_FOR = "0.1"


def work_in_place(module: Any, tracer: Any) -> None:
    """Two tensors, for those that ask for norms. Contents are unknown afterwards."""

    def work(*args: Any) -> Any:
        norms = (torch.zeros(1, device="cuda"),) * 2
        tracer.recorder.values.forget((args[2:], norms))  # not the flag for overflow
        return norms

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return work

    module.__getattr__ = find


def normalise(module: Any, tracer: Any) -> None:
    """Forward: the output, and one or two values of each row. Backward: the gradients, also of one
    or two weights."""

    def answer(rows: int) -> Any:
        def forward(x: Any, shape: Any, *rest: Any) -> Any:
            each = x.numel() // math.prod(shape)
            kept = (torch.empty(each, dtype=torch.float32, device=x.device) for _ in range(rows))
            return (torch.empty_like(x), *kept)

        return forward

    def give_gradients(weights: int) -> Any:
        def backward(gradient: Any, *rest: Any) -> Any:
            shape = next(each for each in rest if isinstance(each, (tuple, list)))
            of_weights = (gradient.new_empty(shape) for _ in range(weights))
            return (torch.empty_like(gradient), *of_weights) if weights else gradient.clone()

        return backward

    for kind, count in (("", 2), ("rms_", 1)):
        for end in ("", "_affine", "_affine_mixed_dtypes"):
            setattr(module, f"{kind}forward{end}", answer(count))
            setattr(module, f"{kind}backward{end}", give_gradients(count if end else 0))


STAND_INS = {"amp_C": work_in_place, "fused_layer_norm_cuda": normalise}
