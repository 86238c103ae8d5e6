"""RMSNorm as a GPU runs it: one kernel, which keeps its input and a number per row.

Without a GPU, PyTorch composes it of simpler operators, which keep the normalised input as well.
GPUs have the kernel since torch 2.9; before, they compose it, too.
"""

from typing import Any, Dict, Optional, Sequence, Tuple

import torch

aten = torch.ops.aten
_NAMES = ("_fused_rms_norm", "_fused_rms_norm_backward")


def fused() -> bool:
    """Whether this version of PyTorch has the kernels."""
    return all(hasattr(aten, name) for name in _NAMES)


def install(library: Any) -> None:
    """Let this process, without the kernels, call them all the same: the Recorder answers."""
    if fused():
        for name in _NAMES:
            library.impl(name, _never, "CUDA")


def answers() -> Dict[Any, Any]:
    """What the Recorder does instead, by operator."""
    if not fused():
        return {}
    operators = (getattr(aten, name).default for name in _NAMES)
    return dict(zip(operators, (forward, backward)))


def forward(recorder: Any, x: Any, shape: Sequence[int], weight: Any, eps: Any) -> Tuple[Any, Any]:
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    return recorder.new(x.shape, x.dtype), recorder.new(rows, torch.float32)


def backward(
    recorder: Any,
    gradient: Any,
    x: Any,
    shape: Sequence[int],
    scale: Any,
    weight: Any,
    wanted: Sequence[bool],
) -> Tuple[Optional[Any], Optional[Any]]:
    of_input = recorder.new(x.shape, x.dtype) if wanted[0] else None
    of_weight = recorder.new(weight.shape, weight.dtype) if wanted[1] else None
    return of_input, of_weight


def _never(*_: Any) -> Any:
    raise NotImplementedError("only fake tensors are on the GPU here")
