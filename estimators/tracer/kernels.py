"""Kernels of a GPU that PyTorch has no counterpart for without one.

**Recurrent layers** (LSTM, GRU, plain ones) as cuDNN runs them: a whole sequence in one call.
Without a GPU PyTorch splits them into single steps, or fails. Here the operator that a GPU would
run is called by name, and its outputs are recorded: the result, and a reserve for the backward
pass. Only cuDNN knows its size; the gates and states of each step are a fair guess.

**Attention**: the implementation that a GPU chooses.
"""

import math
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
_KEPT = (1, 1, 6, 5)  # values per step and unit, by mode: gates, and states besides the output

aten = torch.ops.aten


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
            per_layer = len(weights) // (depth * (2 if both else 1))
            projected = out_size if out_size != hidden else 0
            sizes = [int(size) for size in steps]
            how = _How(
                mode, hidden, projected, depth, batch_first, dropout, train, both, sizes, None
            )
            outs = aten._cudnn_rnn(x, weights, per_layer, None, state, cell, *how)
        return outs[: 3 if mode == _LSTM else 2]

    return run


class _How(NamedTuple):
    """The arguments that cuDNN's layers have besides tensors, as PyTorch orders them."""

    mode: int
    hidden: int
    projected: int  # 0: there is no projection
    depth: int
    batch_first: bool
    dropout: float
    train: bool
    both: bool  # directions
    sizes: Sequence[int]  # of the time steps of a packed sequence
    dropout_state: Any


def rnn(
    recorder: Any,
    x: Any,
    weights: Any,
    per_layer: int,
    buffer: Any,
    state: Any,
    cell: Any,
    *rest: Any,
) -> Tuple[Any, ...]:
    recorder.note("what cuDNN keeps for recurrent layers is guessed")
    how = _How(*rest)
    copies = _copy(recorder, how, x)
    ways = 2 if how.both else 1
    out = recorder.new((*x.shape[:-1], (how.projected or how.hidden) * ways), x.dtype)
    last = recorder.new(state.shape, x.dtype)
    last_cell = recorder.new((0,) if cell is None else cell.shape, x.dtype)
    steps = x.numel() // x.shape[-1]
    units = steps * how.hidden * ways * how.depth if how.train else 0
    reserve = recorder.new((units * _KEPT[how.mode] * x.element_size(),), torch.uint8)
    recorder.release(copies)
    return out, last, last_cell, reserve, recorder.new((0,), x.dtype)


def rnn_backward(
    recorder: Any,
    x: Any,
    weights: Any,
    per_layer: int,
    buffer: Any,
    state: Any,
    cell: Any,
    out: Any,
    *rest: Any,
) -> Tuple[Any, ...]:
    wanted = rest[-1]
    how = _How(*rest[3:13])  # after the gradients of the outputs
    copies = _copy(recorder, how, x, out, out)  # the last for the gradient
    new = [
        recorder.new(t.shape, t.dtype) if want and t is not None else None
        for t, want in zip((x, state, cell), wanted)
    ]
    gradients = [recorder.new(w.shape, w.dtype) for w in weights] if wanted[3] else []
    recorder.release(copies)
    return (*new, gradients)


def _copy(recorder: Any, how: _How, *tensors: Any) -> Any:
    """cuDNN wants time first."""
    return [recorder.hold(t.numel() * t.element_size()) for t in tensors if how.batch_first]


# -- a single cell: for an LSTMCell PyTorch has shape rules ----------------------------------------


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
        if has_torch_function((query, key, value, attn_mask)):
            return handle_torch_function(
                scaled_dot_product_attention,
                (query, key, value, attn_mask),
                *(query, key, value, attn_mask, dropout_p, is_causal),
                scale=scale,
                enable_gqa=enable_gqa,
            )
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
