"""Patches to libraries that the script may import, applied when it does; and stand-ins for
torch._dynamo, torch's symbolic shapes, sympy and torchvision's operators.

torch._dynamo takes as long to import as torch itself and is hardly needed. When it makes fake
tensors, PyTorch reads two settings from it and marks some functions; torchvision imports a function
that it hardly calls. A stub package provides just that. If more of it is used, as some libraries
do, the real package is imported then. So are symbolic shapes: PyTorch's shape rules ask them
whether a comparison holds, and here sizes are numbers. Its rule for the type of a result imports
sympy, half as slow as torch itself, only to ask whether an argument is a symbol.

torchvision, and so timm, becomes importable if its compiled operators do not load. It describes the
shapes of its operators at import, which fails if they do not exist at all; their declarations are
enough for everything but running them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from . import mpi, ranks, substitutes, triton_kernels
from .scratch import path_for_kernel

DYNAMO = "torch._dynamo"
CONFIG = f"{DYNAMO}.config"
UTILS = f"{DYNAMO}.utils"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SYMPY = "sympy"
NO_SYMPY = "carma_sympy"  # no module of this name can be imported

_ROIS = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_BACK = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_FROM = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ROIS}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_BACK}, {_FROM}, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_BACK}, {_FROM}) -> Tensor",
    f"ps_roi_align({_ROIS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, "
    f"int sampling_ratio, {_FROM}) -> Tensor",
    f"ps_roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, {_FROM}) "
    "-> Tensor",
    f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_DEFORM}"
    ") -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, "
    f"Tensor bias, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_declared: list[Any] = []


def _generation(module: Any) -> None:
    """Beam search goes on until all beams are as long as they may be: whether they could still
    improve depends on scores, of which there are none."""

    def has_unfinished(
        improvable: Any, sent: Any, next_token_hits_stopping_criteria: Any, early_stopping: Any
    ) -> bool:
        return not bool(torch.all(next_token_hits_stopping_criteria))

    mixin = module.GenerationMixin
    if hasattr(mixin, "_beam_search_has_unfinished_sequences"):  # transformers 4.50
        mixin._beam_search_has_unfinished_sequences = staticmethod(has_unfinished)


def _saving(module: Any) -> None:
    """It finds weights that share memory by its address, and a fake tensor has none."""
    module.storage_ptr = lambda tensor: tensor.untyped_storage()._cdata


def _never_overflow(module: Any) -> None:
    """Every step is taken: overflow depends on the gradients' values, which are unknown."""
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "CheckOverflow"):
        for check in ("has_overflow", "check_using_norm"):
            if hasattr(owner := getattr(module, name, None), check):
                setattr(owner, check, lambda *_, **__: False)


def _adam(name: str) -> Callable[[Any], None]:
    """An optimizer that would be compiled: PyTorch's has the same states."""

    class Adam(torch.optim.AdamW):
        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            bias_correction: bool = True,
            betas: Any = (0.9, 0.999),
            eps: float = 1e-8,
            *_: Any,
            weight_decay: float = 0.0,
            **__: Any,
        ) -> None:
            super().__init__(params, lr, betas, eps, weight_decay, foreach=False)

    return lambda module: setattr(module, name, Adam)


def _bitsandbytes(module: Any) -> None:
    """Weights to quantize that are on the GPU already: its parameters quantize themselves on their
    way there, and a fake tensor cannot become one."""
    for kind in (module.Params4bit, module.Int8Params):
        kind.__new__ = _parameter(kind.__new__)
    ops = torch.ops.bitsandbytes
    if hasattr(ops, "int8_mixed_scaled_mm"):  # bitsandbytes 0.46
        substitutes.ANSWERS[ops.int8_vectorwise_quant.default] = _in_8_bits
        substitutes.ANSWERS[ops.int8_mixed_scaled_mm.default] = _product_in_8_bits


def _in_8_bits(recorder: Any, tensor: Any, threshold: float = 0.0) -> Any:
    """The tensor, a scale for each row, and which columns have outliers."""
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    outliers = None
    if threshold > 0:
        recorder.note("one in a hundred columns is taken to have outliers, which stay in 16 bits")
        outliers = recorder.new((columns // 100,), torch.int64)
    values = recorder.new(tensor.shape, torch.int8)
    return values, recorder.new((rows,), torch.float32), outliers


def _product_in_8_bits(
    recorder: Any, tensor: Any, quantized: Any, weight: Any, scales: Any, others: Any, *rest: Any
) -> Any:
    """It is in 32 bits at first; also returned is what of the input has outliers."""
    *rows, _ = quantized.shape
    out = recorder.new((*rows, weight.shape[0]), tensor.dtype)
    recorder.release([recorder.hold(4 * out.numel())])
    outliers = rest[0].numel() if rest and rest[0] is not None else 0
    return out, recorder.new((math.prod(rows), outliers), tensor.dtype)


def _parameter(make: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, FakeTensor):
            if kwargs.get("bnb_quantized"):
                return torch.nn.Parameter(data, requires_grad=False)
            data = torch.empty(data.shape, dtype=data.dtype, device="cpu")
        return make(cls, data, *args, **kwargs)

    return new


class _NoStates:
    """In place of the random states that DTensors have on the GPU."""

    distribute_region_enabled = False

    def _manual_seed(self, *_: Any) -> None:
        pass


def _dtensor_random(module: Any) -> None:
    module._rng_tracker = _NoStates()
    module.OffsetBasedRNGTracker = lambda *_, **__: _NoStates()


class _Unseen:
    """A context in which no mode sees operators, and so nothing is recorded."""

    def __enter__(self) -> None:
        self._modes = _disable_current_modes()
        self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)


def _dtensor_shapes(module: Any) -> None:
    """A DTensor finds out shapes with fake tensors of the whole size, which nobody allocates."""
    if hasattr(module.ShardingPropagator, "_fake_mode_lock"):  # torch 2.9
        module.ShardingPropagator._fake_mode_lock = _Unseen()


def _arrow(module: Any) -> None:
    """HF's data sets write their cache from Python, and map it by path from C."""
    memory_map = module.memory_map
    module.memory_map = lambda path, mode="r": memory_map(path_for_kernel(path), mode)


def _locks(module: Any) -> None:
    """Nobody else sees the files. One that lives in memory has no link, by which the package takes
    it for removed, and tries again for ever."""

    def acquire(lock: Any) -> None:
        lock._context.lock_file_fd = os.open(os.devnull, os.O_RDWR)

    module.UnixFileLock._acquire = acquire


def _tensorboard(module: Any) -> None:
    """A graph is drawn of what torch.jit recorded: here the model only runs once for it."""

    def add_graph(writer: Any, model: Any, inputs: Any = (), *_: Any, **__: Any) -> None:
        model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)

    module.SummaryWriter.add_graph = add_graph


def _torchvision(module: Any) -> None:
    """What is only declared has answers, too."""
    if _declared:
        module._assert_has_ops = lambda: None


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.distributed.launcher.api": ranks.launch,
    "triton.runtime.autotuner": triton_kernels.leave_out,
    "triton.runtime.driver": triton_kernels.drive,
    "triton.runtime.jit": triton_kernels.leave_out,
    "torchvision.extension": _torchvision,
    "filelock._unix": _locks,
    "pyarrow": _arrow,
    "torch.distributed.tensor._random": _dtensor_random,
    "torch.distributed.tensor._sharding_prop": _dtensor_shapes,
    "torch.utils.tensorboard.writer": _tensorboard,
    "tensorboardX.writer": _tensorboard,
    "bitsandbytes.nn.modules": _bitsandbytes,
    "transformers.generation.utils": _generation,
    "transformers.pytorch_utils": _saving,
    "deepspeed.ops.adam.cpu_adam": _adam("DeepSpeedCPUAdam"),
    "deepspeed.ops.adam.fused_adam": _adam("FusedAdam"),
    "deepspeed.runtime.utils": _never_overflow,
    "deepspeed.runtime.zero.stage3": _never_overflow,
    "deepspeed.runtime.zero.stage_1_and_2": _never_overflow,
}


_STAND_INS: dict[str, Callable[[Any], None]] = {"mpi4py.MPI": mpi.fill}


class _Loader(importlib.abc.Loader):
    """Of a module that is filled by us."""

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        _STAND_INS[module.__name__](module)


class _PatchFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in _STAND_INS:
            return importlib.machinery.ModuleSpec(name, _Loader())
        patch = _PATCHES.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(more: dict[str, Callable[[Any], None]]) -> None:
    """`more`: patches by module, that need to know the trace."""
    _PATCHES.update(more)
    sys.meta_path.insert(0, _PatchFinder())
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])


def _same(one: Any, other: Any) -> bool:
    return bool(list(one) == list(other) if isinstance(one, (tuple, list)) else one == other)


class _NumbersOnly(types.ModuleType):
    """A stub of symbolic shapes, as far as sizes are numbers."""

    def __init__(self) -> None:
        super().__init__(SHAPES)
        for name in (
            *("expect_true", "guard_bool", "guard_or_false", "guard_or_true"),
            *("guard_size_oblivious", "statically_known_true"),
        ):
            setattr(self, name, bool)
        self.sym_eq = _same
        self.sym_and = lambda *them: all(them)
        self.sym_or = lambda *them: any(them)
        self.guarding_hint_or_throw = lambda size: size
        self.has_guarding_hint = lambda size: True
        self.is_nested_int = self.has_free_unbacked_symbols = lambda _: False
        self.free_unbacked_symbols = lambda _: ()
        self.GuardOnDataDependentSymNode = type("GuardOnDataDependentSymNode", (RuntimeError,), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(SHAPES) is self:
            del sys.modules[SHAPES]
        return getattr(importlib.import_module(SHAPES), name)


class _NoSymbols(types.ModuleType):
    """Sympy if a script has imported it; else a class that nothing is an instance of."""

    def __getattr__(self, name: str) -> Any:
        if SYMPY in sys.modules:
            return getattr(sys.modules[SYMPY], name)
        if name == "Basic":
            return _NoSymbol
        raise AttributeError(name)


class _NoSymbol:
    pass


def _spare_sympy(function: Any) -> None:
    """Have the function import the stand-in. Others hold it already, so it stays the same."""
    code = getattr(function, "__code__", None)
    if code is not None and SYMPY in code.co_names and SYMPY not in sys.modules:
        sys.modules[NO_SYMPY] = _NoSymbols(NO_SYMPY)
        names = (NO_SYMPY if name == SYMPY else name for name in code.co_names)
        function.__code__ = code.replace(co_names=tuple(names))


class _SparseDynamo(types.ModuleType):
    """A stub of the package."""

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else (lambda wrapped: wrapped)

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Called by optimizers in each step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "config":  # it needs nothing of the package
            return importlib.import_module(CONFIG)
        return getattr(_real_dynamo(), name)


class _SparseUtils(types.ModuleType):
    """A stub of a module of the package."""

    @staticmethod
    def is_compile_supported(device_type: Any) -> bool:
        return False  # nothing is compiled here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _real_dynamo()
        return getattr(importlib.import_module(UTILS), name)


class _DynamoFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the whole package if one of its modules is imported, and returns that module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(f"{DYNAMO}.") or name == CONFIG:
            return None
        if not isinstance(sys.modules.get(DYNAMO), _SparseDynamo):
            return None
        _real_dynamo()
        return importlib.machinery.ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: Any) -> Any:
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        pass


def spare_imports() -> None:
    """Call this before the first fake tensor is made."""
    _spare_sympy(getattr(torch._prims_common, "elementwise_dtypes", None))
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = _NumbersOnly()
    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = torch._dynamo = _SparseDynamo()
        sys.modules[UTILS] = _SparseUtils(UTILS)
        sys.meta_path.insert(0, _DynamoFinder())


def _real_dynamo() -> Any:
    """The package itself, imported when it is first asked for. `from torch._dynamo import name` in
    a module that was given the stub asks twice."""
    if isinstance(sys.modules.get(DYNAMO), _SparseDynamo):
        for name in (DYNAMO, CONFIG, UTILS):
            sys.modules.pop(name, None)
        del torch._dynamo  # its own modules look for it there while they are imported
    return importlib.import_module(DYNAMO)


def declare_torchvision() -> None:
    """Does nothing if torchvision is absent."""
    found = importlib.util.find_spec("torchvision")
    if found is None:
        return
    if not hasattr(torch.ops.torchvision, "nms") and not _load(found):
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _declared.append(library)
    substitutes.ANSWERS[torch.ops.torchvision.nms.default] = _keep_boxes


def _load(torchvision: Any) -> bool:
    """Whether its compiled operators can be had."""
    for folder in torchvision.submodule_search_locations or ():
        for compiled in Path(folder).glob("_C*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(str(compiled))
                return True
    return False


def _keep_boxes(recorder: Any, boxes: Any, *_: Any) -> Any:
    recorder.note("boxes are taken not to overlap")
    return recorder.new(boxes.shape[:1], torch.int64)
