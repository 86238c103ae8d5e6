"""FlashAttention: its functions are answered by shape. Kept are the outputs, and a sum for each row
of scores; while gradients are computed, that of the queries in 32 bits. Its compiled module, which
needs CUDA's libraries, is not loaded."""

from __future__ import annotations

from typing import Any

import torch

MADE_FOR = "2.8"


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        out = torch.empty_like(q)
        sums = torch.empty(q[..., 0].transpose(-1, -2).shape, dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, _, sums = ctx.saved_tensors
        found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        torch.empty_like(sums), torch.empty(q.shape, dtype=torch.float32, device=q.device)
        return found


def attend(q: Any, k: Any, v: Any, *_: Any, return_attn_probs: bool = False, **__: Any) -> Any:
    """Batches (batch, length, heads, width), or sequences one behind another (length, …)."""
    out, sums = Attention.apply(q, k, v)
    return (out, sums, None) if return_attn_probs else out


def attend_packed(qkv: Any, *_: Any, **options: Any) -> Any:
    return attend(*qkv.unbind(-3), **options)


def attend_half_packed(q: Any, kv: Any, *_: Any, **options: Any) -> Any:
    return attend(q, *kv.unbind(-3), **options)


def answer(module: Any, tracer: Any) -> None:
    for kind in ("", "varlen_"):
        functions = {"": attend, "qkvpacked_": attend_packed, "kvpacked_": attend_half_packed}
        for packed, function in functions.items():
            tracer.replace(module, **{f"flash_attn_{kind}{packed}func": function})


PATCHES = {"flash_attn.flash_attn_interface": answer}
STAND_INS = {"flash_attn_2_cuda": lambda module, tracer: None}
