"""Memory of kernels besides tensors: workspaces of cuBLAS, and of the algorithms cuDNN chooses.

The libraries do not reveal their choice in advance. Of about 40 sets of parameters tried, those
here fit GPUMemNet's timm data best (A100, float32, cudnn.benchmark on). The optimum is flat, and
the explanations are guesses: no kernel was inspected. `benchmarks/memory/timm.py` has the method.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .convolution import Conv

# Bytes per thread that runs GEMMs, kept for good. Hopper takes 24 MiB more, which then show as part
# of the context that is measured there.
BLAS = 8_519_680
NARROW = 48  # channels per group, below which tensor cores are not used


def workspace(conv: Conv) -> int:
    """Bytes that the convolution takes while it runs.

    Tensor cores want channels last, so a copy of input and output is made going forward, and nearly
    two going backward; and the weight, in another layout. Kernels of one point, and those for
    images, work on what is there; those of few channels per group copy a quarter.
    """
    if not _searched(conv):
        return 0
    moved = (prod(conv.input) + prod(conv.output)) * conv.itemsize
    if conv.groups == conv.input[1] > 1:  # depthwise
        return moved // 4
    weight = prod(conv.weight) * conv.itemsize
    share = 1.75 if conv.backward else 1.0
    if conv.groups > 1 and conv.input[1] // conv.groups <= NARROW:
        share /= 4
    return int(share * (moved + weight)) + weight


def autotuning(conv: Conv) -> int:
    """Bytes that cudnn.benchmark may take when it first meets the convolution: twice the input
    with every window written out, as matrix products want it. It explains most of what was seen
    on top; a few runs took many times more."""
    if not _searched(conv):
        return 0
    positions = conv.input if conv.transposed else conv.output
    window = prod(conv.weight[1:])
    return 2 * positions[0] * prod(positions[2:]) * window * conv.itemsize


def _searched(conv: Conv) -> bool:
    """Whether cuDNN can choose among algorithms with a workspace."""
    return conv.input[1] > 4 and max(conv.weight[2:]) > 1
