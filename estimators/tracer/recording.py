"""Records what a program would allocate on one GPU, while its GPU tensors are fake.

`Recorder` is a dispatch mode: PyTorch hands it every operator that is about to run. Tensors on
`cuda` are fake (a shape, strides, a dtype and a storage without data), tensors on the CPU are real.
An operator on fake tensors is not run: its outputs are made by PyTorch's shape rules, and each
storage is tracked until it is freed. Results are cached by operator and shapes, since networks
are repetitive.
"""

import contextlib
import importlib
import itertools
import math
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import fakecuda, substitutes
from .choices import Choices, Deceit
from .convolution import Conv
from .operators import (
    GEMMS,
    KINDS,
    META,
    ON_GPU,
    ONE_DEVICE,
    SMALL,
    as_meta,
    as_zeros,
    check_devices,
    describe,
    kind_of,
    leaves_gpu,
    map_tensors,
    recipe_of,
)
from .values import COMPARES, Values, is_small, needs_values

GPU = torch.device("cuda:0")
_DEVICE_OF = torch.ops.prim.device.default
_VIEW_AS_TYPE = torch.ops.aten.view.dtype
_PLAIN = torch.Tensor.__torch_dispatch__
MOST_ZEROS = 1 << 24  # elements


def _unwraps(kind: Any) -> bool:
    """Whether tensors of this type answer operators with what they consist of, as a DTensor."""
    return not issubclass(kind, FakeTensor) and kind.__torch_dispatch__ is not _PLAIN


class _Storage(weakref.ref):  # type: ignore[type-arg]
    """A live storage on the GPU; calls back when it is freed."""

    __slots__ = ("address", "id", "nbytes", "value")
    address: int
    id: int
    nbytes: int
    value: Any  # see `Values`


class _Mode(FakeTensorMode):
    """In which several threads of a script may run operators at the same time."""

    _own = threading.local()

    @property
    def in_kernel_invocation(self) -> bool:
        return getattr(self._own, "is_inside", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, is_inside: bool) -> None:
        self._own.is_inside = is_inside


class Recording(NamedTuple):
    """What was recorded, as `Recorder` describes it."""

    events: List[Tuple[Any, Any]]
    convs: List[Conv]
    kinds: Dict[int, str]
    benchmark: bool
    memory: float


class Recorder(TorchDispatchMode):
    """Use as `with Recorder() as recorder:`; what it offers afterwards:

    events: what happened, in order, as pairs
        (id, nbytes >= 0) a storage was allocated · (id, -1) it was freed
        ("conv", i) `convs[i]` runs now, its outputs are allocated
        ("blas", "forward" | "backward") a matrix product runs in that thread, the first time
        ("mark", name) "forward" and "backward" at the end of each, "optimizer" and "stepped" around
        the optimizer's step, and what `mark` was called with
        ("empty", 0) the cache was emptied
        ("phase", name) the program does this from now on: "training", "evaluation" …
        and those of `Attribution`
    convs: the convolutions
    kinds: id → "parameters", "gradients" or "optimizer"; all other storages are activations
    witness: called with the id and dtype (None: unknown) of every storage, once it is allocated
    notes: what was assumed
    failed: the last error of an operator before anything was made up
    refused: the last error of an operator
    choices: what the program was told of values that nothing computed
    skipped: whether passes were left out
    deceived: whether it got anything else that a real run would not give it, and that it did not
        only print
    benchmark: torch.backends.cudnn.benchmark as the program left it
    memory: bytes that the GPU has, as far as that is known
    full: called with the bytes for which there is no room; it may raise, or they are allocated
    operators: how many have run on the GPU
    gpu: the index of the first that the program has named; None: it has named none
    since: when the first bytes were allocated, by the monotonic clock; None: there were none
    phase: what the program does now
    live, peak: bytes allocated now, and the most that were since `forget_peak`
    """

    def __init__(self) -> None:
        super().__init__()
        fakecuda.install()
        substitutes.install()
        self.events: List[Tuple[Any, Any]] = []
        self.convs: List[Conv] = []
        self.kinds: Dict[int, str] = {}
        self.notes: List[str] = []
        self.phase = "training"
        self.benchmark = self.skipped = False
        self.deceived = Deceit()
        self.choices = Choices()
        self.failed: Optional[Exception] = None
        self.refused: Optional[Exception] = None
        self.witness: Optional[Callable[[int, Optional[torch.dtype]], None]] = None
        self.memory = math.inf
        self.full: Callable[[int], None] = lambda nbytes: None
        self.live = self.peak = 0
        self.operators = 0
        self.gpu: Optional[int] = None
        self.since: Optional[float] = None
        self._ids = 0
        self._storages: Dict[int, Any] = {}
        self._held: Dict[int, int] = {}
        self._answers: Dict[Tuple[Any, ...], Any] = {}
        self._home = self._thread = threading.get_ident()
        self._blas: List[str] = []
        self.values = Values(self._storage_of)
        self._mode = _Mode()
        # Copied tensors stay in this mode: with one of their own, CUDA's kernels would be called.
        self._mode.__deepcopy__ = lambda memo: self._mode
        lengths = itertools.count()  # of nested tensors
        self._mode.create_symbolic_nested_int = lambda **_: torch._C._get_nested_int(
            next(lengths), 1
        )
        sample = FakeTensor(self._mode, torch.empty(0, device=META), GPU)
        self._attributes = dict(vars(sample))

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch guards each call against its compiler, which it imports for that."""
        return False

    def __enter__(self) -> "Recorder":
        self._while = substitutes.recording()
        self._while.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._while.__exit__(None, None, None)
        self.benchmark = bool(torch.backends.cudnn.benchmark)

    @property
    def recording(self) -> Recording:
        return Recording(self.events, self.convs, self.kinds, self.benchmark, self.memory)

    # -- what the caller says ----------------------------------------------------------------------

    def mark(self, name: str) -> None:
        self.events.append(("mark", name))

    def enter(self, phase: str) -> str:
        """The phase before."""
        before, self.phase = self.phase, phase
        if phase != before:
            self.events.append(("phase", phase))
        return before

    def empty_cache(self) -> None:
        self.events.append(("empty", 0))

    def deceive(self) -> None:
        """Call this when the program gets something that a real run would not."""
        self.deceived.notice()

    @property
    def made_up(self) -> bool:
        return bool(self.deceived or self.skipped or self.choices.asked)

    def use(self, device: Any) -> None:
        """Call this where the program names a GPU."""
        if self.gpu is None:
            index = device if isinstance(device, int) else torch.device(device).index
            self.gpu = index if index is not None and index >= 0 else None

    def restart(self) -> None:
        """Record anew, in a process that was forked: what was allocated before is not its own."""
        home, self._home = self._home, threading.get_ident()
        self._thread = self._home
        if home != self._home:  # modes are a thread's
            super().__enter__()
        for watched in list(self._storages.values()):
            watched.nbytes = 0
        self._held = dict.fromkeys(self._held, 0)
        self.events[:] = [(one.id, 0) for one in self._storages.values()]
        self.events += self._held.items()
        for record in (self.convs, self.kinds, self._blas):
            record.clear()
        self.live = self.peak = self.operators = 0
        self.gpu = self.since = None

    def alias(self, shape: Any, stride: Any, dtype: torch.dtype) -> Any:
        """A tensor in memory that another process has allocated."""
        return self._fake(torch.empty_strided(shape, stride, dtype=dtype, device=META))

    @property
    def has_allocated(self) -> bool:
        return self.since is not None

    def forget_peak(self) -> None:
        self.peak = self.live

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_first(self, text: str) -> None:
        """Before all others: it decides what the result is worth."""
        self.notes.insert(0, text)

    def label(self, kind: str, tensors: Iterable[Any]) -> None:
        """Set what the storages of these tensors are for. The latest label counts; anything but
        tensors on the GPU is ignored."""
        for tensor in tensors:
            tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's, in FSDP
            id = self.id_of(tensor)
            if id is not None:
                self.kinds[id] = kind

    def label_optimizer(self, optimizer: Any) -> None:
        """Call this after each of its steps, while the gradients still exist."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.label("parameters", parameters)
        self.label("gradients", (p.grad for p in parameters))
        for state in optimizer.state.values():
            if isinstance(state, dict):
                self.label("optimizer", state.values())

    def id_of(self, tensor: Any) -> Optional[int]:
        """The id of its storage among the events; None for anything but a tensor on the GPU."""
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            return None
        storage = self._storage_of(tensor)
        return None if storage is None else int(storage.id)

    def _storage_of(self, tensor: Any) -> Any:
        return self._storages.get(tensor.untyped_storage()._cdata)

    @property
    def is_backward(self) -> bool:
        return threading.get_ident() != self._home

    # -- what operators do -------------------------------------------------------------------------

    def new(self, shape: Any, dtype: torch.dtype, stride: Any = None) -> Any:
        """A new tensor on the GPU; contiguous if no strides are given."""
        if stride is None:
            meta = torch.empty(shape, dtype=dtype, device=META)
        else:
            meta = torch.empty_strided(shape, stride, dtype=dtype, device=META)
        tensor = self._fake(meta)
        self._watch(tensor)
        return tensor

    def hold(self, nbytes: int) -> int:
        """Allocate bytes that belong to no tensor, until they are released."""
        self._ids += 1
        self._held[self._ids] = nbytes
        self._log_allocation(self._ids, nbytes, None)
        return self._ids

    def release(self, held: Iterable[int]) -> None:
        for id in held:
            self._log_release(id, self._held.pop(id))

    def _fake(self, meta: Any) -> Any:
        """What FakeTensor(mode, meta, GPU) makes, in a fifth of the time."""
        tensor = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=GPU
        )
        vars(tensor).update(self._attributes)
        return tensor

    def note_resize(self, storage: Any) -> None:
        """Call this when a storage was resized other than by an operator."""
        if storage._cdata in self._storages:
            self._watch_storage(storage)

    def note_write(self, storage: Any) -> None:
        """Call this when a storage was written to other than by an operator."""
        if storage._cdata in self._storages:
            self._storages[storage._cdata].value = None

    def _watch(self, tensor: Any) -> None:
        self._watch_storage(tensor.untyped_storage(), tensor.dtype)

    def _watch_storage(self, storage: Any, dtype: Optional[torch.dtype] = None) -> None:
        address, nbytes = storage._cdata, storage.nbytes()
        if self.live + nbytes > self.memory:
            self.full(nbytes)
        known = self._storages.get(address)
        if known is not None:
            if known.nbytes == nbytes:
                return
            self._drop(known)  # resized
        self._ids += 1
        watched = _Storage(storage, self._drop)
        watched.address, watched.id, watched.nbytes = address, self._ids, nbytes
        watched.value = None
        self._storages[address] = watched
        self._log_allocation(self._ids, nbytes, dtype)

    def _drop(self, watched: Any) -> None:
        del self._storages[watched.address]
        self._log_release(watched.id, watched.nbytes)

    def _log_allocation(self, id: int, nbytes: int, dtype: Optional[torch.dtype]) -> None:
        self.events.append((id, nbytes))
        if nbytes and self.since is None:
            self.since = time.monotonic()
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        if self.witness is not None:
            self.witness(id, dtype)

    def _log_release(self, id: int, nbytes: int) -> None:
        self.events.append((id, -1))
        self.live -= nbytes

    # -- operators ---------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if not hasattr(func, "_schema"):
            return self._higher_order(func, args, kwargs or {})
        if func is _DEVICE_OF:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if any(map(_unwraps, types)):
            return NotImplemented  # it comes again with what they consist of
        kwargs = kwargs or {}
        key: List[Any] = [func, torch.get_default_dtype(), *kwargs]
        found = describe(args, key)
        if kwargs:
            found |= describe(kwargs.values(), key)
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "cuda":
                self.use(torch.device(device).index or 0)
                found = found | ON_GPU | SMALL
        if not found & ON_GPU:
            return substitutes.on_host(func, args, kwargs)
        self.operators += 1
        if threading.get_ident() != self._thread:
            self._turn()
        try:
            return self._on_gpu(func, args, kwargs, key, bool(found & SMALL))
        except Exception as error:
            self.refused = error
            if not self.made_up:
                self.failed = error
            raise

    def _higher_order(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """One that takes functions, such as flex_attention: by its own rule for fake tensors."""
        known: Any = importlib.import_module("torch._higher_order_ops.utils")
        rule = getattr(known, "registered_hop_fake_fns", {}).get(func)
        if rule is None:
            raise NotImplementedError(f"{func.name()} cannot be traced")
        name = func.name().replace("_backward", "")
        self.note(f"{name} is taken to be one kernel, as torch.compile makes it")
        with self._inside():
            return rule(*args, **kwargs)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """The recorder also sees the operators that one consists of."""
        TorchDispatchMode.__enter__(self)
        try:
            yield
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _on_gpu(
        self, func: Any, args: Any, kwargs: Dict[str, Any], key: List[Any], small: bool
    ) -> Any:
        if func in ONE_DEVICE:
            check_devices(args)
        if func in GEMMS:
            self._gemm()
        if not small and func.overloadpacket not in COMPARES:
            return self._answer(func, args, kwargs, key)
        if needs_values(func) or leaves_gpu(func, kwargs):
            real = self.values.result(func, args, kwargs)
            if real is not None:
                return self._place_result(real, kwargs.get("device"))
        out = self._answer(func, args, kwargs, key)
        if KINDS.get(func) != "view":
            self.values.follow(func, args, kwargs, out)
        elif func is _VIEW_AS_TYPE and not is_small(out):
            self.values.forget(out)  # as what is written to it is not seen
        return out

    def _place_result(self, real: Any, place: Any) -> Any:
        """A result that is known: a number, or tensors, on the GPU unless they go elsewhere."""
        if isinstance(real, (tuple, list)):
            return type(real)([self._place_result(one, place) for one in real])
        if not isinstance(real, torch.Tensor) or place is not None:
            return real
        return self.values.keep(self.new(real.shape, real.dtype, real.stride()), real)

    def _answer(self, func: Any, args: Any, kwargs: Dict[str, Any], key: List[Any]) -> Any:
        answer = substitutes.ANSWERS.get(func)
        if answer is not None:
            out = answer(self, *args, **kwargs)
            if out is not NotImplemented:
                return out
        kind = KINDS.get(func) or kind_of(func)
        if kind == "composite":
            with self._inside():
                return func.decompose(*args, **kwargs)
        if kind == "in place":
            return args[0] if func._schema.returns else None
        if kind == "view":
            return self._view(func, args, kwargs)
        copies = [self.hold(nbytes) for nbytes in substitutes.copy_sizes(func, args)]
        out = self.run(func, args, kwargs, tuple(key) if kind == "function" else None)
        self.release(copies)
        return out

    def _turn(self) -> None:
        """The backward pass has its own thread, so a change of threads shows when it ends."""
        self.mark(self._phase())
        self._thread = threading.get_ident()

    def _phase(self) -> str:
        return "forward" if self._thread == self._home else "backward"

    def _gemm(self) -> None:
        phase = self._phase()
        if phase not in self._blas:
            self._blas.append(phase)
            self.events.append(("blas", phase))

    def _view(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Outputs that share their input's storage, by PyTorch's own rule in C++."""
        with fake_tensor.in_kernel_invocation_manager(self._mode):
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return self._fake(out)
        return [self._fake(part) for part in out]

    def run(
        self, func: Any, args: Any, kwargs: Dict[str, Any], key: Optional[Tuple[Any, ...]] = None
    ) -> Any:
        """Outputs of their own: as remembered under `key`, or as PyTorch's rules say."""
        answer = self._answers.get(key) if key is not None else None
        if answer is not None:
            form, recipes = answer
            parts = [None if recipe is None else self.new(*recipe) for recipe in recipes]
            return parts[0] if form is None else form(parts)
        ids = self._ids
        out = self._outputs(func, args, kwargs)
        form = type(out) if isinstance(out, (tuple, list)) else None
        parts = list(out) if form else [out]
        if key is not None:
            recipes = [recipe_of(part) for part in parts if part is not None]
            if None not in recipes and self._ids - ids == len(recipes):
                again = iter(recipes)
                recipes = [None if part is None else next(again) for part in parts]
                self._answers[key] = form, recipes
        return parts[0] if form is None else form(parts)

    def _outputs(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """By PyTorch's rules for the meta device, whose tensors have shapes and no data. Where it
        has no rule, the operator is run on zeros on the CPU; where its rule refuses, too, as it may
        be stricter than the kernels."""
        place = kwargs.get("device")
        if place is not None:
            kwargs = {**kwargs, "device": META}
        try:
            with fake_tensor.in_kernel_invocation_manager(self._mode):
                out = func(*map_tensors(as_meta, args), **kwargs)
        except NotImplementedError:
            out = func(*map_tensors(as_zeros, args), **map_tensors(as_zeros, kwargs))
        except (RuntimeError, IndexError, TypeError, ValueError):
            out = _on_zeros(func, args, kwargs)
            if out is None:
                raise
        if place is not None and torch.device(place).type != "cuda":
            return map_tensors(lambda tensor: substitutes.stand_in(self, tensor, place), out)
        return map_tensors(self._receive, out)

    def _receive(self, tensor: Any) -> Any:
        if tensor.layout is not torch.strided:
            return self._fake(tensor)  # what sparse ones consist of was seen before
        if not isinstance(tensor, FakeTensor):
            if not tensor.is_meta:
                return self.new(tensor.shape, tensor.dtype, tensor.stride())
            tensor = self._fake(tensor)
        self._watch(tensor)
        return tensor


def _on_zeros(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """None if the CPU's kernel refuses as well, or the tensors are large."""
    sizes: List[int] = []
    map_tensors(lambda tensor: sizes.append(tensor.numel()), [args, kwargs])
    if kind_of(func) != "function" or sum(sizes) > MOST_ZEROS:
        return None
    try:
        return func(*map_tensors(as_zeros, args), **map_tensors(as_zeros, kwargs))
    except Exception:  # noqa: BLE001  what the rule says is told
        return None
