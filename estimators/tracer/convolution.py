"""Convolutions as in cuDNN: output shapes, memory layouts, copies, and workspaces.

PyTorch's own shape rule asks the CUDA library for its choice of algorithm, which is different
without a GPU. The rule here: everything is in channels-last layout if the input or the weight
is, otherwise contiguous; tensors in another layout are copied for the duration of the call.

Workspaces are memory of kernels besides tensors: of cuBLAS, and of the algorithms cuDNN chooses.
The libraries do not reveal their choice in advance. Of about 40 sets of parameters tried, those
in `workspace` fit GPUMemNet's timm data best (A100, float32, cudnn.benchmark on). The optimum is
flat, and the explanations are guesses: no kernel was inspected; `lab/memory/timm.py` has the
method. What a search takes (`autotuning`) was seen on an H100 and on that A100.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any, Iterator, NamedTuple, Sequence, Tuple

import torch

Shape = Tuple[int, ...]
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

# Bytes per thread that runs GEMMs, kept for good. Hopper takes 24 MiB more, which then show as part
# of the context that is measured there.
BLAS = 8_519_680
PADDED = 8  # channels that an image of at most IMAGE is padded to: what tensor cores take at once
IMAGE = 4
TRANSFORMED = 256  # side of the largest plane that cuDNN transforms as a whole
TILE = 32  # side of what it transforms piece by piece
PAIRS = 1_000_000  # of channels; below, transforms of tiles cost more surplus than they explain
NARROW = 48  # channels per group, below which tensor cores are not used


class Conv(NamedTuple):
    """One convolution that ran; `itemsize` is in bytes per element."""

    backward: bool
    input: Shape
    weight: Shape
    output: Shape  # in the backward pass the gradient that comes in has this shape
    groups: int
    itemsize: int
    stride: Shape
    dilation: Shape
    transposed: bool


class How(NamedTuple):
    """The arguments that a convolution has besides tensors, as PyTorch orders them."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def forward(recorder: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    how = How(*rest)
    _check_channels(x, weight, how)
    last = _layout(x, weight)
    copies = _copies(recorder, (x, weight), last)
    shape = _output_shape(x.shape, weight.shape, how)
    out = recorder.new(shape, x.dtype, _strides(shape, last))
    _log(recorder, False, x, weight, shape, how)
    recorder.release(copies)
    return out


def _check_channels(x: Any, weight: Any, how: How) -> None:
    """Raises what PyTorch raises."""
    wanted = weight.shape[0] if how.transposed else weight.shape[1] * how.groups
    if x.shape[1] != wanted:
        raise RuntimeError(
            f"Given groups={how.groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(x.shape)} to have {wanted} channels, but got {x.shape[1]} channels instead"
        )


def backward(recorder: Any, gradient: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    *those, wanted = rest
    last = _layout(x, weight)
    copies = _copies(recorder, (gradient, x, weight), last)
    outs = [
        recorder.new(t.shape, t.dtype, _strides(t.shape, last)) if want else None
        for t, want in zip((x, weight), wanted)
    ]
    outs.append(recorder.new((gradient.shape[1],), x.dtype) if wanted[2] else None)
    _log(recorder, True, x, weight, gradient.shape, How(*those))
    recorder.release(copies)
    return tuple(outs)


def _log(recorder: Any, backward: bool, x: Any, weight: Any, out: Shape, how: How) -> None:
    recorder.events.append(("conv", len(recorder.convs)))
    shapes = tuple(x.shape), tuple(weight.shape), tuple(out)
    moves = tuple(how.stride), tuple(how.dilation), how.transposed
    recorder.convs.append(Conv(backward, *shapes, how.groups, x.element_size(), *moves))


def _output_shape(x: Shape, weight: Shape, how: How) -> Shape:
    """(N, C, spatial…); an option with one value is meant for all the dimensions."""
    out: list[int] = []
    for i, size in enumerate(x[2:]):
        step, pad, gap, extra = (
            option[i if len(option) > 1 else 0]
            for option in (how.stride, how.padding, how.dilation, how.output_padding)
        )
        reach = gap * (weight[i + 2] - 1)
        if how.transposed:
            out.append((size - 1) * step - 2 * pad + reach + extra + 1)
        else:
            out.append((size + 2 * pad - reach - 1) // step + 1)
    return (x[0], weight[1] * how.groups if how.transposed else weight[0], *out)


def _layout(x: Any, weight: Any) -> torch.memory_format | None:
    """Channels-last if one of the two is that and not contiguous at the same time; else None."""
    last = _CHANNELS_LAST.get(x.dim())
    if last is not None and any(
        t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)
    ):
        return last
    return None


def _strides(shape: Shape, last: torch.memory_format | None) -> Shape | None:
    """Of a dense channels-last tensor; None if it is to be contiguous."""
    if last is None:
        return None
    return torch.empty(shape, device="meta", memory_format=last).stride()


def _copies(recorder: Any, tensors: Any, last: torch.memory_format | None) -> list[int]:
    form = torch.contiguous_format if last is None else last
    return [
        recorder.hold(t.numel() * t.element_size())
        for t in tensors
        if not t.is_contiguous(memory_format=form)
    ]


def images(conv: Conv) -> int:
    """Bytes kept for good for images with more channels, without data. That they are kept is what
    fits: the data show 2.6 times the images' size at all batch sizes."""
    is_image = conv.groups == 1 and conv.input[1] <= IMAGE and max(conv.weight[2:]) > 1
    return prod(conv.input) // conv.input[1] * PADDED * conv.itemsize if is_image else 0


def workspace(conv: Conv) -> int:
    """Bytes that the convolution takes while it runs.

    Tensor cores want channels last, so a copy of input and output is made going forward, and nearly
    two going backward; and the weight, in another layout. Kernels of one point work on what is
    there; those of few channels per group copy a quarter.
    """
    if conv.input[1] <= IMAGE or max(conv.weight[2:]) == 1:
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
    return max((size for size in _transforms(conv) if size <= free), default=0)


def _transforms(conv: Conv) -> Iterator[int]:
    """Bytes of Fourier transforms of planes, the greediest algorithms that were seen.

    An H100 shows that they are tried: ResNet-50 at batch 64 allocated 10,412 MiB at most. When its
    backward pass meets 512 × 2,048 channels, 5,379 MiB are live, and the tiles' transforms take
    5,032. Runs on the A100 that nvidia-smi caught at such a moment agree. Of single points nothing
    is transformed. Matrix products with all windows written out, as large, explain no run.
    """
    plane = max(conv.input[2:])
    plain = {1} == {*conv.stride, *conv.dilation}
    if len(conv.input) != 4 or conv.input[1] <= IMAGE or plane == 1 or not plain:
        return
    channels, outputs = conv.input[1], conv.output[1]
    pairs = channels * outputs // conv.groups
    planes = (conv.input[0] * (channels + outputs) + pairs) * conv.itemsize
    if plane <= TRANSFORMED:
        # Padded to squares of a power of two: much where planes are 4 by 256, as in mobilevitv2.
        yield planes * _transformed(1 << (plane - 1).bit_length())
    if conv.groups == 1 and pairs >= PAIRS:  # of tiles, whose number hardly matters
        yield planes * _transformed(TILE)


def _transformed(side: int) -> int:
    """Real numbers in the Fourier transform of a square of them."""
    return side * (side // 2 + 1) * 2
