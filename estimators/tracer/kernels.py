"""Kernels of a GPU that PyTorch has no counterpart for without one.

**Recurrent layers** (LSTM, GRU, plain ones) as cuDNN runs them: a whole sequence in one call.
Without a GPU PyTorch splits them into single steps, or fails. Here the operator that a GPU would
run is called by name, and its outputs are recorded: the result, and a reserve for the backward
pass. Only cuDNN knows its size; the gates and states of each step are a fair guess.

**RMSNorm**: one kernel, which keeps its input and a number per row. Without a GPU, PyTorch composes
it of simpler operators, which keep the normalised input as well. GPUs have the kernel since torch
2.9; before, they compose it, too.

**Attention**: the implementation that a GPU chooses.
"""

import math
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
_KEPT = (1, 1, 6, 5)  # values per step and unit, by mode: gates, and states besides the output

aten = torch.ops.aten
_NAMES = ("_fused_rms_norm", "_fused_rms_norm_backward")


def install_rnns() -> None:
    for name, mode in _MODES.items():
        setattr(torch._VF, name, _layers(getattr(torch._VF, name), mode))
    flatten = torch.nn.RNNBase.flatten_parameters

    def flatten_parameters(self: Any) -> None:
        """Moves the weights to one storage, which has the size of all of them."""
        if not any(isinstance(weight, FakeTensor) for weight in self._flat_weights):
            flatten(self)

    torch.nn.RNNBase.flatten_parameters = flatten_parameters


def _layers(original: Callable[..., Any], mode: int) -> Callable[..., Any]:
    def run(x: Any, *args: Any) -> Any:
        if not isinstance(x, FakeTensor):
            return original(x, *args)
        steps: Sequence[Any] = ()
        if isinstance(args[1], list):
            states, weights, _, depth, dropout, train, both, batch_first = args
        else:  # a packed sequence
            steps, states, weights, _, depth, dropout, train, both = args
            batch_first = False
        state, cell = states if mode == _LSTM else (states, None)
        if torch.is_autocast_enabled():
            dtype = torch.get_autocast_gpu_dtype()
            weights = [weight.to(dtype) for weight in weights]
            x, state, cell = (t if t is None else t.to(dtype) for t in (x, state, cell))
        out_size = state.shape[-1]
        hidden = out_size if cell is None else cell.shape[-1]
        with torch.autocast("cuda", enabled=False):
            outs = torch.ops.aten._cudnn_rnn(
                x,
                weights,
                len(weights) // (depth * (2 if both else 1)),
                None,
                state,
                cell,
                mode,
                hidden,
                out_size if out_size != hidden else 0,
                depth,
                batch_first,
                dropout,
                train,
                both,
                [int(size) for size in steps],
                None,
            )
        return outs[: 3 if mode == _LSTM else 2]

    return run


def rnn(
    recorder: Any,
    x: Any,
    weights: Sequence[Any],
    per_layer: int,
    buffer: Any,
    state: Any,
    cell: Any,
    mode: int,
    hidden: int,
    projected: int,
    depth: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    both: bool,
    sizes: Sequence[int],
    dropout_state: Any,
) -> Tuple[Any, ...]:
    recorder.note("what cuDNN keeps for recurrent layers is guessed")
    copies = _copy(recorder, batch_first, x)
    ways = 2 if both else 1
    out = recorder.new((*x.shape[:-1], (projected or hidden) * ways), x.dtype)
    last = recorder.new(state.shape, x.dtype)
    last_cell = recorder.new((0,) if cell is None else cell.shape, x.dtype)
    steps = x.numel() // x.shape[-1]
    kept = steps * hidden * ways * depth * _KEPT[mode] * x.element_size() if train else 0
    reserve = recorder.new((kept,), torch.uint8)
    recorder.release(copies)
    return out, last, last_cell, reserve, recorder.new((0,), x.dtype)


def rnn_backward(
    recorder: Any,
    x: Any,
    weights: Sequence[Any],
    per_layer: int,
    buffer: Any,
    state: Any,
    cell: Any,
    out: Any,
    gradient: Optional[Any],
    last_gradient: Optional[Any],
    cell_gradient: Optional[Any],
    mode: int,
    hidden: int,
    projected: int,
    depth: int,
    batch_first: bool,
    *rest: Any,
) -> Tuple[Any, ...]:
    copies = _copy(recorder, batch_first, x, out, out)  # the last for the gradient
    wanted = rest[-1]
    new = [
        recorder.new(t.shape, t.dtype) if want and t is not None else None
        for t, want in zip((x, state, cell), wanted)
    ]
    gradients = [recorder.new(w.shape, w.dtype) for w in weights] if wanted[3] else []
    recorder.release(copies)
    return (*new, gradients)


def _copy(recorder: Any, batch_first: bool, *tensors: Any) -> Any:
    """cuDNN wants time first."""
    return [recorder.hold(t.numel() * t.element_size()) for t in tensors if batch_first]


# -- single cells: GRUCell, LSTMCell ---------------------------------------------------------------


def gru_cell(recorder: Any, gates: Any, hidden_gates: Any, hidden: Any, *_: Any) -> Any:
    """The new hidden state, and five numbers of each unit for the backward pass."""
    rows, width = hidden.shape
    return recorder.new((rows, width), hidden.dtype), recorder.new((rows, 5 * width), hidden.dtype)


def gru_cell_backward(recorder: Any, gradient: Any, kept: Any, has_bias: bool) -> Any:
    rows, width = gradient.shape
    dtype = gradient.dtype
    gates = [recorder.new((rows, 3 * width), dtype) for _ in range(2)]
    biases = [recorder.new((3 * width,), dtype) if has_bias else None for _ in range(2)]
    return (*gates, recorder.new((rows, width), dtype), *biases)


def lstm_cell(recorder: Any, gates: Any, hidden_gates: Any, cell: Any, *_: Any) -> Any:
    """The new hidden state and cell, and four numbers of each unit for the backward pass."""
    rows, width = cell.shape
    states = [recorder.new((rows, width), cell.dtype) for _ in range(2)]
    return (*states, recorder.new((rows, 4 * width), cell.dtype))


def lstm_cell_backward(
    recorder: Any, of_hidden: Any, of_cell: Any, cell: Any, after: Any, kept: Any, has_bias: bool
) -> Any:
    rows, width = cell.shape
    bias = recorder.new((4 * width,), cell.dtype) if has_bias else None
    gates = recorder.new((rows, 4 * width), cell.dtype)
    return gates, recorder.new((rows, width), cell.dtype), bias


def has_kernels() -> bool:
    """Whether this version of PyTorch has the kernels."""
    return all(hasattr(aten, name) for name in _NAMES)


def install_rms_norm(library: Any) -> None:
    """Let this process, without the kernels, call them all the same: the Recorder answers."""
    if has_kernels():
        for name in _NAMES:
            library.impl(name, _never, "CUDA")


def answer_rms_norm() -> Dict[Any, Any]:
    """What the Recorder does instead, by operator."""
    if not has_kernels():
        return {}
    operators = (getattr(aten, name).default for name in _NAMES)
    return dict(zip(operators, (rms_norm, rms_norm_backward)))


def rms_norm(recorder: Any, x: Any, shape: Sequence[int], weight: Any, eps: Any) -> Tuple[Any, Any]:
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    return recorder.new(x.shape, x.dtype), recorder.new(rows, torch.float32)


def rms_norm_backward(
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


# -- attention ------------------------------------------------------------------------------------


def attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """`scaled_dot_product_attention` with the choice that a GPU since Ampere makes."""

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        on_gpu = isinstance(query, FakeTensor)
        if not on_gpu and not (is_traceable_wrapper_subclass(query) and query.is_cuda):
            more = {"enable_gqa": True} if enable_gqa else {}
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            times = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(times, -3) for t in (key, value))
        rest = dropout_p, is_causal
        if _flash(query, value, attn_mask):
            width = query.shape[-1]
            if width % 8:
                query, key, value = (F.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
                scale = 1 / math.sqrt(width) if scale is None else scale
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, *rest, False, scale=scale
            )[0]
            return out[..., :width]
        if _efficient(query, value):
            keep = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, keep, *rest, scale=scale
            )[0]
        return torch._scaled_dot_product_attention_math(
            query, key, value, attn_mask, *rest, scale=scale
        )[0]

    return scaled_dot_product_attention


def _flash(query: Any, value: Any, mask: Any) -> bool:
    return bool(
        torch.backends.cuda.flash_sdp_enabled()
        and mask is None
        and query.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] == value.shape[-1] <= 256
    )


def _efficient(query: Any, value: Any) -> bool:
    step = 4 if query.dtype is torch.float32 else 8
    return bool(
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and query.shape[-1] % step == 0
        and value.shape[-1] % step == 0
    )


def _bias(mask: Any, query: Any, key: Any) -> Any:
    """The mask as numbers, its rows padded to 16, for every head."""
    if mask.dtype is torch.bool:
        shut = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
        mask = torch.where(mask, torch.zeros_like(shut), shut)
    if mask.shape[-1] % 16:
        mask = F.pad(mask, (0, 16 - mask.shape[-1] % 16))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
