"""Patches PyTorch where a trace would fail or differ: what accesses the GPU without the dispatcher,
compilers, checks of values."""

from __future__ import annotations

import sys
from functools import lru_cache, wraps
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from .answering import is_own
from .recording import Recorder

_TYPES = {
    "FloatTensor": torch.float,
    "DoubleTensor": torch.double,
    "HalfTensor": torch.half,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.long,
    "IntTensor": torch.int,
    "ShortTensor": torch.short,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def install(recorder: Recorder) -> None:
    _makers()
    _methods()
    _storages(recorder)
    _moves()
    _one_graph(recorder)
    torch.distributions.Distribution.set_default_validate_args(False)  # of unknown values


class _OldType(type):
    """Of `torch.cuda.FloatTensor` and its like: `FloatTensor(2, 3)` is of that size, and
    `FloatTensor([2, 3])` has these values."""

    dtype: torch.dtype

    def __call__(cls, *given: Any) -> Any:
        sizes = len(given) != 1 or isinstance(given[0], (int, torch.Size))
        if sizes:
            return torch.empty(*given or (0,), dtype=cls.dtype, device="cuda")
        return torch.as_tensor(given[0], dtype=cls.dtype, device="cpu").to("cuda")

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor) and thing.is_cuda and thing.dtype is cls.dtype


def _as_subclass(tensor: Any, cls: Any) -> Any:
    """PyTorch makes an alias first, which comes back from a mode as a plain tensor for good. On the
    GPU it stays one."""
    if isinstance(tensor, FakeTensor):
        return tensor
    with _disable_current_modes():
        return torch._C.TensorBase.as_subclass(tensor, cls)


def _add_new(cls: Any, /, **_: Any) -> None:
    if cls.__new__ in (torch._C.TensorBase.__new__, torch.Tensor.__new__):
        cls.__new__ = _new


def _new(cls: Any, *given: Any, **kwargs: Any) -> Any:
    """`Noise(tensor)` and `Noise(2, 3)`, likewise."""
    if len(given) == 1 and isinstance(given[0], torch.Tensor):
        return _as_subclass(given[0].detach(), cls)
    with _disable_current_modes():
        return torch._C.TensorBase.__new__(cls, *given, **kwargs)


def _new_on_gpu(cls: Any, *given: Any, **kwargs: Any) -> Any:
    """`torch.Tensor(…)` follows the default type, but not the default device."""
    if cls is not torch.Tensor or kwargs:
        return _new(cls, *given, **kwargs)
    name = str(torch.get_default_dtype())
    kind = next(kind for kind, dtype in _TYPES.items() if str(dtype) == name)
    return getattr(torch.cuda, kind)(*given)


def _makers() -> None:
    """PyTorch reads the tensors in a list without its dispatcher, so they are read before."""

    def from_data(make: Any, at: int = 0) -> Any:
        @wraps(make)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) > at and isinstance(args[at], (list, tuple)):
                args = (*args[:at], _read(args[at]), *args[at + 1 :])
            if isinstance(kwargs.get("data"), (list, tuple)):
                kwargs["data"] = _read(kwargs["data"])
            return make(*args, **kwargs)

        return call

    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, from_data(getattr(torch, name)))
    torch.Tensor.new_tensor = from_data(torch.Tensor.new_tensor, 1)
    torch.Tensor.__new__ = from_data(torch._C.TensorBase.__new__, 1)


def _read(data: Any) -> Any:
    """A list with what its tensors on the GPU say."""
    if isinstance(data, FakeTensor):
        return torch.full((), data.item(), dtype=data.dtype, device="cpu")
    if not any(isinstance(one, (FakeTensor, list, tuple)) for one in data):
        return data
    return [_read(one) if isinstance(one, (FakeTensor, list, tuple)) else one for one in data]


def _methods() -> None:
    """Patches methods and factories that access the GPU without the dispatcher."""
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.Tensor.is_pinned = lambda self, *_, **__: False
    torch.Tensor.record_stream = lambda *_, **__: None
    for name, dtype in _TYPES.items():
        setattr(torch.cuda, name, _OldType(name, (), {"__module__": "torch.cuda", "dtype": dtype}))
    set_type = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not name.startswith("torch.cuda."):
            return set_type(kind)
        torch.set_default_dtype(_TYPES[name.rpartition(".")[2]])
        torch.set_default_device("cuda")
        torch.Tensor.__new__ = _new_on_gpu
        return None

    torch.set_default_tensor_type = set_default_tensor_type
    convert = torch.Tensor.type

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return convert(self)
        kind = isinstance(dtype, type)
        name = f"{dtype.__module__}.{dtype.__name__}" if kind else str(dtype)
        if name.startswith("torch.cuda."):
            return self.to("cuda", _TYPES[name.rpartition(".")[2]])
        return convert(self, dtype, *args, **kwargs)

    torch.Tensor.type = type_
    torch.Tensor.as_subclass = _as_subclass
    torch.Tensor.__init_subclass__ = classmethod(_add_new)
    formatted = torch.Tensor.__format__

    def format_(self: Any, spec: str) -> str:
        """PyTorch formats a single value so only if the class is Tensor itself."""
        if isinstance(self, FakeTensor) and self.dim() == 0:
            return format(self.item(), spec)
        return str(formatted(self, spec))

    torch.Tensor.__format__ = format_
    make = torch.Generator

    class Generator(make):  # type: ignore[misc,valid-type]
        """Always on the CPU: random numbers are never drawn on the GPU."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return make.__new__(cls, device="cpu")

    torch.Generator = Generator
    torch._VF._pack_padded_sequence = _pack
    torch.inference_mode = _inference_mode


def _storages(recorder: Recorder) -> None:
    """FSDP frees what it gathered by resizing its storage to nothing; other processes may share
    storages."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        resize(storage, size)
        recorder.note_resize(storage)
        return storage

    torch.UntypedStorage.resize_ = resize_
    for name in ("copy_", "fill_"):
        setattr(torch.UntypedStorage, name, _writing(getattr(torch.UntypedStorage, name), recorder))
    share = torch.UntypedStorage.share_memory_

    def share_memory_(storage: Any) -> Any:
        """What is on the GPU is shared anyway."""
        return storage if storage.device.type == "meta" else share(storage)

    torch.UntypedStorage.share_memory_ = share_memory_


def _writing(write: Any, recorder: Recorder) -> Any:
    def write_unknown(storage: Any, *args: Any, **kwargs: Any) -> Any:
        write(storage, *args, **kwargs)
        recorder.note_write(storage)
        return storage

    return write_unknown


def _pack(padded: Any, lengths: Any, batch_first: bool) -> Any:
    """`lengths`, on the CPU, falls: what is left of each time step, one after the other."""
    steps = padded.transpose(0, 1) if batch_first else padded
    count = int(lengths[0])
    sizes = (lengths[None] > torch.arange(count)[:, None]).sum(1)
    return torch.cat([steps[i, :size] for i, size in enumerate(sizes.tolist())]), sizes


def _inference_mode(mode: Any = True) -> Any:
    """The same memory; in the real one operators come to the recorder in larger pieces."""
    return torch.no_grad()(mode) if callable(mode) else torch.set_grad_enabled(not mode)


def _one_graph(recorder: Recorder) -> None:
    """Disables compilers: the trace is of the program as written."""

    def skip() -> None:
        if not _is_imported(sys._getframe(2)):
            recorder.note("torch.compile and torch.jit are left out: traced in eager mode")

    def compile_(program: Any = None, *_: Any, **__: Any) -> Any:
        skip()
        if program is None:
            return compile_
        return OptimizedModule(program) if isinstance(program, Module) else program

    make = torch.jit.script

    def script(program: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return make(program, *args, **kwargs)  # such as rules for forward derivatives
        skip()
        return _scripted(program)

    def trace(program: Any, inputs: Any = (), *_: Any, **__: Any) -> Any:
        skip()
        program(*inputs if isinstance(inputs, tuple) else (inputs,))
        return _scripted(program)

    torch.compile = compile_
    torch.jit.script, torch.jit.trace = script, trace
    torch.nn.Module.compile = lambda self, *_, **__: skip()


def _is_imported(caller: FrameType) -> bool:
    """Whether a library decorates its functions, as an import of it may have done before."""
    return caller.f_code.co_name == "<module>" and not is_own(caller)


class OptimizedModule(Module):
    """What torch.compile makes of a module, which it has as `_orig_mod`."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self._orig_mod = program
        self.training = program.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules[name]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_orig_mod", "training") or name in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __len__(self) -> int:
        return len(self._orig_mod)


def _scripted(program: Any) -> Any:
    """The same module, with what torch.jit adds. What else it may have there is not known: its
    class is of this package, so what it lacks is not blamed on the script."""
    if isinstance(program, Module):
        kind = type(program)
        added = {
            "__module__": __name__,
            "save": lambda self, file, *_, **__: torch.save(self, file),
            "code": "",
            "graph": "",
        }
        program.__class__ = type(kind.__name__, (kind,), added)
    return program


def _moves() -> None:
    """`model.cuda()` and its like, so that parameters stay who they are.

    Whoever holds a parameter (an optimizer, a second layer with the same weights) must hold the
    moved one. PyTorch lets it keep its identity by changing it in place, which it refuses between
    a real and a fake tensor; there the two change places instead.
    """
    Module._apply = _apply
    torch.Tensor.data = property(_data.__get__, _set_data)


_data = torch._C.TensorBase.data


def _set_data(tensor: Any, value: Any) -> None:
    """`parameter.data = parameter.data.cuda()`: in place, as above."""
    if isinstance(value, FakeTensor) == isinstance(tensor, FakeTensor):
        _data.__set__(tensor, value)
    else:
        _swap(tensor, value)


def _swap(parameter: Any, value: Any) -> None:
    """Keeps what libraries have set on the parameter, such as its quantization."""
    new = Parameter(value, parameter.requires_grad)
    vars(new).update((k, v) for k, v in vars(parameter).items() if k not in _of_fakes())
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, hooks, None):
            setattr(new, hooks, getattr(parameter, hooks))
    # As torch.utils.swap_tensors, which refuses where there are weak references: they may stay.
    parameter.__class__, new.__class__ = new.__class__, parameter.__class__
    parameter.__dict__, new.__dict__ = new.__dict__, parameter.__dict__
    torch._C._swap_tensor_impl(parameter, new)


@lru_cache(maxsize=None)
def _of_fakes() -> frozenset[str]:
    """Attributes that every fake parameter has."""
    meta = torch.empty(0, device="meta")
    return frozenset((*vars(FakeTensor(FakeTensorMode(), meta, meta.device)), "_is_param"))


def _apply(module: Any, change: Any, recurse: bool = True) -> Any:
    """As `Module._apply`: `change` maps a tensor to the moved or converted one."""
    if recurse:
        for child in module.children():
            child._apply(change)
    for key, parameter in module._parameters.items():
        if parameter is None:
            continue
        gradient, parameter.grad = parameter.grad, None
        with torch.no_grad():
            changed = change(parameter)
        if changed is not parameter:
            if is_traceable_wrapper_subclass(changed):  # a DTensor
                new = Parameter(changed, parameter.requires_grad)
                torch.utils.swap_tensors(parameter, new)
            elif isinstance(changed, FakeTensor) == isinstance(parameter, FakeTensor):
                parameter.data = changed
            elif parameter._use_count() > 2:  # a graph refers to it: nobody trains it now
                parameter = module._parameters[key] = Parameter(changed, parameter.requires_grad)
            else:
                _swap(parameter, changed)
        if gradient is not None:
            with torch.no_grad():
                parameter.grad = change(gradient)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = change(buffer)
    return module
