"""Substitutes for the GPU: values that nothing computes, and choices that PyTorch makes differently
without a GPU.

Values: a fake tensor has none. If a program reads one (`.item()`, `nonzero`, a boolean mask), and
it is not known (`values`), it gets one that usually allocates at least as much as the real one:
every element is selected, numbers are 1.

Choices: without a GPU, attention uses the implementation that keeps all scores (`kernels`), and
RMSNorm and the derivatives of SiLU and Mish are composed of pieces with large temporaries.
"""

import contextlib
import ctypes
import importlib
import math
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from . import convolution, kernels, sparse
from .operators import KINDS, kind_of
from .values import LEFT_EMPTY

aten = torch.ops.aten
_installed: List[Any] = []


# Kernels of a GPU, which PyTorch composes of others where there is none. RMSNorm's: torch 2.9.
_WHOLE = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")


def _never(*_: Any) -> Any:
    raise NotImplementedError("only fake tensors are on the GPU here")


def install() -> None:
    """Patch this process; real tensors are not affected."""
    if _installed:
        return
    if not torch.backends.cuda.is_built():
        library = torch.library.Library("aten", "IMPL")
        for name in _WHOLE:
            if hasattr(aten, name):
                library.impl(name, _never, "CUDA")
        _installed.append(library)
    original = F.scaled_dot_product_attention
    attention = kernels.attention(original)
    F.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention
    _installed.append(original)
    kernels.install_rnns()
    _let_optimizers_batch()


@contextlib.contextmanager
def replace_attributes(owner: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """What holds only while a Recorder is at work: parameters are not drawn from the truncated
    normal distribution, which may be done until the values fit, and `torch.tensor(…,
    device="cuda")` makes a CPU tensor first, which is then moved under the Recorder's eyes."""
    with replace_attributes(torch.nn.init, _no_grad_trunc_normal_=lambda tensor, *_, **__: tensor):
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            yield
        finally:
            torch._C._set_only_lift_cpu_tensors(before)


def _let_optimizers_batch() -> None:
    """Optimizers work on all parameters at once only for tensor types that they know."""
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        known = getattr(importlib.import_module(name), "_foreach_supported_types", None)
        if isinstance(known, list) and FakeTensor not in known:
            known.append(FakeTensor)


# -- on the CPU ------------------------------------------------------------------------------------

_RANDOM = frozenset((aten.uniform_.default, aten.normal_.default, aten.erfinv_.default))
_EMPTY = frozenset((aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty))
_M_MMAP_THRESHOLD = -3  # of mallopt


def give_zeros() -> None:
    """Let large tensors that nobody fills be zero. The kernel's pages are: so the C library shall
    not use again what was large enough to have pages of its own."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LEFT_EMPTY)


def on_host(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Runs an operator on real tensors. Large parameters are not initialised, since they become
    fake; what nobody has written to yet is zero."""
    target = args[0] if args else None
    if (
        isinstance(target, torch.Tensor)
        and target.numel() * target.element_size() >= LEFT_EMPTY
        and (KINDS.get(func) or kind_of(func)) == "in place"
        and (
            (isinstance(target, torch.nn.Parameter) and func.namespace == "aten")
            or (func in _RANDOM and target.is_floating_point())
        )
    ):
        return target
    out = func(*args, **kwargs)
    if (
        func.overloadpacket in _EMPTY
        and out.numel() * out.element_size() < LEFT_EMPTY
        and out.is_cpu
    ):
        out.zero_()
    return out


def stand_in(recorder: Any, tensor: Any, device: Any) -> Any:
    """The result of copying a tensor from the GPU: ones, or false."""
    if tensor.numel() > 1:
        recorder.deceive()
    is_true = recorder.choices.choose(*((False, True) if tensor.dtype is torch.bool else (1, 0)))
    return torch.full(tensor.shape, is_true, dtype=tensor.dtype, device=device)


# -- copies ----------------------------------------------------------------------------------------

_CONTIGUOUS: Dict[Any, Tuple[int, ...]] = {  # the arguments that these kernels need contiguous
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0, 1),
    aten._softmax.default: (0,),
    aten._softmax_backward_data.default: (0, 1),
    aten._log_softmax.default: (0,),
    aten._log_softmax_backward_data.default: (0, 1),
}
_PRODUCTS: Dict[Any, Tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}


def copy_sizes(func: Any, args: Any) -> List[int]:
    """Bytes of the arguments that a kernel copies, because of their strides, while it runs."""
    out = [args[i] for i in _CONTIGUOUS.get(func, ()) if not args[i].is_contiguous()]
    out += [args[i] for i in _PRODUCTS.get(func, ()) if not _fit_for_blas(args[i])]
    return [tensor.numel() * tensor.element_size() for tensor in out]


def _fit_for_blas(matrix: Any) -> bool:
    """Rows or columns are contiguous and do not overlap."""
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


# -- values ----------------------------------------------------------------------------------------


def _item(recorder: Any, tensor: Any) -> Any:
    recorder.note("values read from the GPU are taken to be 1, truth values to be false")
    if tensor.dtype is torch.bool:
        return recorder.choices.choose(False, True)
    return recorder.choices.choose(*((1.0, 0.0) if tensor.is_floating_point() else (1, 0)))


def _select_all(recorder: Any) -> None:
    recorder.note("masks are taken to select everything")
    recorder.deceive()


def _nonzero(recorder: Any, tensor: Any) -> Any:
    _select_all(recorder)
    return recorder.new((tensor.numel(), tensor.dim()), torch.int64)


def _select_by_mask(recorder: Any, tensor: Any, mask: Any) -> Any:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    real = _contents(recorder, mask)
    if real is None:
        _select_all(recorder)
    count = math.prod(shape) if real is None else int(real.expand(shape).sum())
    return recorder.new((count,), tensor.dtype)


def _unique(recorder: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    recorder.note("values are taken to be all different")
    count = recorder.choices.choose(tensor.numel(), min(1, tensor.numel()))
    return (
        recorder.new((count,), tensor.dtype),
        recorder.new(tensor.shape, torch.int64),
        recorder.new((count,), torch.int64),
    )


def _repeat_interleave(recorder: Any, repeats: Any, *, output_size: Any = None) -> Any:
    if output_size is None:
        recorder.deceive()
    return recorder.new((output_size or repeats.numel(),), torch.int64)


def _index(recorder: Any, tensor: Any, indices: Any) -> Any:
    """x[mask, …]; without a mask it is an operator like any other."""
    if not any(_is_mask(index) for index in indices):
        return NotImplemented
    return recorder.run(aten.index.Tensor, (tensor, _positions(recorder, indices)), {})


def _index_put(recorder: Any, tensor: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    _positions(recorder, indices)
    return NotImplemented


def _positions(recorder: Any, indices: Any) -> List[Any]:
    """The GPU turns masks into the positions of what they select."""
    out: List[Any] = []
    for index in indices:
        if not _is_mask(index):
            out.append(index)
        elif (real := _contents(recorder, index)) is None:
            _select_all(recorder)
            out.extend(recorder.new((index.numel(),), torch.int64) for _ in range(index.dim()))
        else:
            found = real.nonzero().unbind(1)
            out.extend(
                recorder.values.keep(recorder.new(one.shape, one.dtype), one) for one in found
            )
    return out


def _contents(recorder: Any, mask: Any) -> Any:
    """None if they are not known."""
    return recorder.values.of(mask) if isinstance(mask, FakeTensor) else mask


def _ctc(recorder: Any, logp: Any, targets: Any, *rest: Any) -> Any:
    """The losses, and the forward probabilities of each label and the blanks between them."""
    steps, batch = logp.shape[0], logp.shape[1] if logp.dim() == 3 else 1
    longest = targets.shape[1] if targets.dim() == 2 else int(max(rest[1]))
    alpha = recorder.new((batch, steps, 2 * longest + 1), logp.dtype)
    return recorder.new((batch,), logp.dtype), alpha


def _ctc_backward(recorder: Any, gradient: Any, logp: Any, *rest: Any) -> Any:
    """Meanwhile there are the backward probabilities, as large as the forward ones."""
    alpha = rest[4]
    recorder.release([recorder.hold(alpha.numel() * alpha.element_size())])
    return recorder.new(logp.shape, logp.dtype)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


ANSWERS: Dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution.forward,
    aten.convolution_backward.default: convolution.backward,
    aten._cudnn_rnn.default: kernels.rnn,
    aten._cudnn_rnn_backward.default: kernels.rnn_backward,
    aten._local_scalar_dense.default: _item,
    aten.equal.default: lambda recorder, a, b: recorder.choices.choose(True, False),
    aten._thnn_fused_gru_cell.default: kernels.gru_cell,
    aten._thnn_fused_gru_cell_backward.default: kernels.gru_cell_backward,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.index_put_.default: _index_put,
    aten.index_put.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.masked_select.default: _select_by_mask,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    **sparse.ANSWERS,
}
for _name, _answer in (  # some have an overload more in newer versions
    ("_use_cudnn_ctc_loss", lambda *_, **__: False),
    ("_use_miopen_ctc_loss", lambda *_, **__: False),
    ("_ctc_loss", _ctc),
    ("_ctc_loss_backward", _ctc_backward),
):
    if hasattr(aten, _name):
        _packet = getattr(aten, _name)
        ANSWERS.update((getattr(_packet, overload), _answer) for overload in _packet.overloads())
