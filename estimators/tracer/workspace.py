"""Memory of kernels besides tensors: workspaces of cuBLAS, and of the algorithms cuDNN chooses.

The libraries do not reveal their choice in advance. Of about 40 sets of parameters tried, those
here fit GPUMemNet's timm data best (A100, float32, cudnn.benchmark on). The optimum is flat, and
the explanations are guesses: no kernel was inspected. `lab/memory/timm.py` has the method.
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from .convolution import Conv

# Bytes per thread that runs GEMMs, kept for good. Hopper takes 24 MiB more, which then show as part
# of the context that is measured there.
BLAS = 8_519_680
PADDED = 8  # channels that an image of at most IMAGE is padded to: what tensor cores take at once
IMAGE = 4
TRANSFORMED = 256  # side of the largest plane that cuDNN transforms as a whole
TILE = 32  # side of what it transforms piece by piece
PAIRS = 2_000_000  # of channels; below, transforms of tiles cost more surplus than they explain
NARROW = 48  # channels per group, below which tensor cores are not used


def images(conv: Conv) -> int:
    """Bytes kept for good for images with more channels, without data. That they are kept is what
    fits: the data show 2.6 times the images' size at all batch sizes."""
    return prod(conv.input) // conv.input[1] * PADDED * conv.itemsize if _is_image(conv) else 0


def workspace(conv: Conv) -> int:
    """Bytes that the convolution takes while it runs.

    Tensor cores want channels last, so a copy of input and output is made going forward, and nearly
    two going backward; and the weight, in another layout. Kernels of one point work on what is
    there; those of few channels per group copy a quarter.
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


def autotuning(conv: Conv, free: float = inf) -> int:
    """Bytes that cudnn.benchmark takes when it first meets the convolution: what the greediest
    algorithm wants of those that are satisfied with what is `free`."""
    return max((size for size in _greediest(conv) if size <= free), default=0)


def _greediest(conv: Conv) -> Iterator[int]:
    if conv.input[1] <= IMAGE:
        return
    if max(conv.weight[2:]) > 1:
        # A matrix product: twice the input with every window written out. Fitted.
        positions = conv.input if conv.transposed else conv.output
        window = prod(conv.weight[1:])
        yield 2 * positions[0] * prod(positions[2:]) * window * conv.itemsize
    plane = max(conv.input[2:])
    if len(conv.input) == 4 and plane <= TRANSFORMED and {1} == {*conv.stride, *conv.dilation}:
        # Fourier transforms of planes, padded to squares of a power of two: much where planes are
        # 4 by 256, as in mobilevitv2.
        batch, channels, outputs = conv.input[0], conv.input[1], conv.output[1]
        pairs = channels * outputs // conv.groups
        side = 1 << (plane - 1).bit_length()
        yield (batch * (channels + outputs) + pairs) * _transformed(side, conv)
        # And of tiles, whose number hardly matters beside the weight's. The data show at most those
        # of a few models, and in one run of several: what is sampled once a second misses most.
        if conv.groups == 1 and pairs >= PAIRS:
            yield (batch * (channels + outputs) + pairs) * _transformed(TILE, conv)


def _transformed(side: int, conv: Conv) -> int:
    """Bytes of the Fourier transform of a square of numbers."""
    return side * (side // 2 + 1) * 2 * conv.itemsize


def _is_image(conv: Conv) -> bool:
    return conv.groups == 1 and conv.input[1] <= IMAGE and max(conv.weight[2:]) > 1


def _searched(conv: Conv) -> bool:
    """Whether cuDNN can choose among algorithms with a workspace."""
    return conv.input[1] > IMAGE and max(conv.weight[2:]) > 1
