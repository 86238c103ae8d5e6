"""LSTM, GRU and plain recurrent layers as cuDNN runs them: a whole sequence in one call.

Without a GPU PyTorch splits them into single steps, or fails. Here the operator that a GPU
would run is called by name, and its outputs are recorded: the result, and a reserve for the
backward pass. Only cuDNN knows its size; the gates and states of each step are a fair guess.
"""

from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
_KEPT = (1, 1, 6, 5)  # values per step and unit, by mode: gates, and states besides the output


def install() -> None:
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


def forward(
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


def backward(
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
