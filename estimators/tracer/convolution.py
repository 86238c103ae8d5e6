"""Convolutions as in cuDNN: output shapes, memory layouts, and copies.

PyTorch's own shape rule asks the CUDA library for its choice of algorithm, which is different
without a GPU. The rule here: everything is in channels-last layout if the input or the weight
is, otherwise contiguous; tensors in another layout are copied for the duration of the call.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

Shape = Tuple[int, ...]
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


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
    input_gradient: bool = False  # whether the backward pass has to make it


def forward(
    recorder: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    last = _layout(x, weight)
    copies = _copies(recorder, (x, weight), last)
    shape = _output_shape(
        x.shape, weight.shape, stride, padding, dilation, transposed, output_padding, groups
    )
    out = recorder.new(shape, x.dtype, _strides(shape, last))
    _log(recorder, False, x, weight, shape, groups, stride, dilation, transposed)
    recorder.release(copies)
    return out


def backward(
    recorder: Any,
    gradient: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    last = _layout(x, weight)
    copies = _copies(recorder, (gradient, x, weight), last)
    outs = [
        recorder.new(t.shape, t.dtype, _strides(t.shape, last)) if want else None
        for t, want in zip((x, weight), wanted)
    ]
    outs.append(recorder.new((gradient.shape[1],), x.dtype) if wanted[2] else None)
    _log(recorder, True, x, weight, gradient.shape, groups, stride, dilation, transposed, wanted[0])
    recorder.release(copies)
    return tuple(outs)


def _log(
    recorder: Any,
    backward: bool,
    x: Any,
    weight: Any,
    out: Shape,
    groups: int,
    stride: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    input_gradient: bool = False,
) -> None:
    recorder.events.append(("conv", len(recorder.convs)))
    recorder.convs.append(
        Conv(
            backward,
            tuple(x.shape),
            tuple(weight.shape),
            tuple(out),
            groups,
            x.element_size(),
            tuple(stride),
            tuple(dilation),
            transposed,
            input_gradient,
        )
    )


def _output_shape(
    x: Shape,
    weight: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Shape:
    """(N, C, spatial…); an option with one value is meant for all the dimensions."""
    out: List[int] = []
    for i, size in enumerate(x[2:]):
        step, pad, gap, extra = (
            option[i if len(option) > 1 else 0]
            for option in (stride, padding, dilation, output_padding)
        )
        reach = gap * (weight[i + 2] - 1)
        if transposed:
            out.append((size - 1) * step - 2 * pad + reach + extra + 1)
        else:
            out.append((size + 2 * pad - reach - 1) // step + 1)
    return (x[0], weight[1] * groups if transposed else weight[0], *out)


def _layout(x: Any, weight: Any) -> Optional[torch.memory_format]:
    """Channels-last if one of the two is that and not contiguous at the same time; else None."""
    last = _CHANNELS_LAST.get(x.dim())
    if last is not None and any(
        t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)
    ):
        return last
    return None


def _strides(shape: Shape, last: Optional[torch.memory_format]) -> Optional[Shape]:
    """Of a dense channels-last tensor; None if it is to be contiguous."""
    if last is None:
        return None
    strides, step = [0] * len(shape), 1
    for i in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[i] = step
        step *= max(shape[i], 1)
    return tuple(strides)


def _copies(recorder: Any, tensors: Any, last: Optional[torch.memory_format]) -> List[int]:
    form = torch.contiguous_format if last is None else last
    return [
        recorder.hold(t.numel() * t.element_size())
        for t in tensors
        if not t.is_contiguous(memory_format=form)
    ]
