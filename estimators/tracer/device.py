"""Makes `torch.cuda` look as on the server, and patches what else a trace needs.

The GPU has the name, size and compute capability of the server's. Streams and events do nothing,
as the trace has only one stream. Random states are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import out_of_memory
from .recording import Recorder

# GPU, compute capability, GiB of memory, unless the name has them ("A100-SXM4-40GB").
_MODELS = (
    ("B200", (10, 0), 180),
    ("GH200", (9, 0), 96),
    ("H200", (9, 0), 141),
    ("H100", (9, 0), 80),
    ("L40S", (8, 9), 45),
    ("L40", (8, 9), 45),
    ("L4", (8, 9), 23),
    ("RTX 6000 Ada", (8, 9), 48),
    ("RTX 50", (12, 0), 32),
    ("RTX 40", (8, 9), 24),
    ("RTX 30", (8, 6), 24),
    ("RTX A", (8, 6), 48),
    ("A100", (8, 0), 80),
    ("A40", (8, 6), 45),
    ("A10", (8, 6), 23),
    ("A30", (8, 0), 24),
    ("T4", (7, 5), 15),
    ("RTX 20", (7, 5), 11),
    ("V100", (7, 0), 16),
    ("P100", (6, 0), 16),
)
Refuse = Callable[[str], None]
_UNWRITTEN = "checkpoints are not written"
_UNKNOWN = ("NVIDIA A100-SXM4-80GB", (8, 0), 80)
# What these do has no effect on the trace.
_NOTHING = (
    *("init", "_lazy_init", "_lazy_call", "synchronize", "ipc_collect", "set_device", "set_stream"),
    *("set_sync_debug_mode", "set_per_process_memory_fraction", "reset_accumulated_memory_stats"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
)
# That bfloat16 is supported is guessed as well, but hardly makes a script stop.
_OF_THE_MODEL = (
    "get_device_name",
    "get_device_properties",
    "get_device_capability",
    "get_arch_list",
)


def model(gpu: str) -> tuple[str, tuple[int, int], int]:
    """Name, compute capability and bytes of a GPU; an A100's if the name says nothing."""
    said = re.search(r"(\d+) ?GB", gpu)
    name, capability, gib = next(
        ((gpu, capability, gib) for part, capability, gib in _MODELS if part in gpu),
        (gpu or _UNKNOWN[0], *_UNKNOWN[1:]),
    )
    return name, capability, (int(said.group(1)) if said else gib) * 2**30


class _Stream:
    """A stream or an event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda:0")
        self.cuda_stream = self.stream_id = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()

    def wait_stream(self, *_: Any) -> None:
        pass

    wait_event = wait = record = synchronize = wait_stream


class _Current(contextlib.ContextDecorator):
    """`with torch.cuda.device(0):`"""

    def __init__(self, *_: Any) -> None:
        self.idx = self.prev_idx = 0

    def __enter__(self) -> _Current:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Properties(SimpleNamespace):
    """A GPU's. The memory is nominal: a script that depends on it may do something else there."""

    size: int
    asked: Callable[[], None]

    @property
    def total_memory(self) -> int:
        self.asked()
        return self.size


def visible(gpus: int) -> int:
    """How many GPUs the script sees: the job's, unless it chose among them itself."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    ids = (one.strip() for one in chosen.split(","))
    return sum(1 for _ in takewhile(lambda one: one and not one.startswith("-"), ids))


def pretend(recorder: Recorder, gpu: str, gpus: int, refuse: Refuse) -> None:
    """Make `torch` look as if it had `gpus` GPUs of this model, the first of them in use.
    `refuse` ends the trace with a reason."""
    _cuda(recorder, gpu, gpus)
    _tensors()
    _storages(recorder)
    _accelerator(gpus)
    _one_graph(recorder)
    _values()
    _checkpoints(recorder, refuse)


def _cuda(recorder: Recorder, gpu: str, gpus: int) -> None:
    name, capability, size = model(gpu)
    recorder.memory = size
    recorder.full = out_of_memory.raiser(recorder)
    properties = _Properties(
        name=name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=108,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="",
    )
    properties.size, properties.asked = size, recorder.deceived
    used, most = (lambda *_, **__: recorder.live), (lambda *_, **__: recorder.peak)
    constants: dict[str, Any] = {
        "is_initialized": True,
        "_is_compiled": True,
        "current_device": 0,
        "get_device_name": name,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_arch_list": [f"sm_{capability[0]}{capability[1]}"],
        "is_bf16_supported": capability >= (8, 0),
        "is_tf32_supported": capability >= (8, 0),
        "can_device_access_peer": True,
        "is_current_stream_capturing": False,
        "utilization": 0,
        "memory_summary": "",
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": [torch.zeros(16, dtype=torch.uint8)] * gpus,
        "initial_seed": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        **dict.fromkeys(_NOTHING),
    }
    functions: dict[str, Any] = {
        "is_available": lambda: visible(gpus) > 0,
        "device_count": lambda: visible(gpus),
        "memory_allocated": used,
        "memory_reserved": used,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "mem_get_info": lambda *_: (max(0, properties.total_memory - recorder.live), size),
        "memory_stats": lambda *_: defaultdict(int),
        "empty_cache": recorder.empty_cache,
        "reset_peak_memory_stats": lambda *_: recorder.forget_peak(),
        "reset_max_memory_allocated": lambda *_: recorder.forget_peak(),
        "reset_max_memory_cached": lambda *_: recorder.forget_peak(),
        "Stream": _Stream,
        "Event": _Stream,
        "stream": lambda stream=None: _Stream(),
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "device": _Current,
        "device_of": _Current,
    }
    functions.update((key, _always(value)) for key, value in constants.items())
    if not any(part in gpu for part, _, _ in _MODELS):
        functions.update((key, _guessed(constants[key], recorder)) for key in _OF_THE_MODEL)
    _replace(functions)


def _replace(functions: dict[str, Any]) -> None:
    """Functions and classes of `torch.cuda`, and what else shows that there is no CUDA."""
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for key, value in functions.items():
            if module is torch.cuda or hasattr(module, key):
                setattr(module, key, value)
    for key in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, key, _always(0))
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        torch._C._cuda_getCurrentRawStream = _always(0)
    if torch.version.cuda is None:
        torch.version.cuda = "12.6"
        torch.backends.cudnn.version = _always(91_000)
        torch.backends.cudnn.is_available = _always(True)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _guessed(value: Any, recorder: Recorder) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        recorder.deceived()
        return value

    return answer


def _accelerator(gpus: int) -> None:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6
    if accelerator is not None:
        values = {
            "is_available": True,
            "device_count": gpus,
            "current_accelerator": torch.device("cuda"),
            "current_device_index": 0,
            "current_device_idx": 0,
            "synchronize": None,
            "set_device_index": None,
            "set_device_idx": None,
        }
        for key, value in values.items():
            setattr(accelerator, key, _always(value))
        accelerator.current_stream = lambda device=None: _Stream()
        torch._C._get_accelerator = _always(torch.device("cuda"))


def _tensors() -> None:
    """Patches methods and factories that access the GPU without the dispatcher."""
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.Tensor.is_pinned = lambda self, *_, **__: False
    torch.Tensor.record_stream = _always(None)
    dtypes = {
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
    convert = torch.Tensor.type

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return convert(self)
        kind = isinstance(dtype, type)
        name = f"{dtype.__module__}.{dtype.__name__}" if kind else str(dtype)
        if name.startswith("torch.cuda."):
            return self.to("cuda", dtypes[name.rpartition(".")[2]])
        return convert(self, dtype, *args, **kwargs)

    torch.Tensor.type = type_
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
    torch._VF._pack_padded_sequence = _packed
    torch.inference_mode = _inference_mode


def _storages(recorder: Recorder) -> None:
    """FSDP frees what it gathered by resizing its storage to nothing."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        resize(storage, size)
        recorder.resized(storage)
        return storage

    torch.UntypedStorage.resize_ = resize_


def _packed(padded: Any, lengths: Any, batch_first: bool) -> Any:
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

    def unchanged(program: Any = None, *_: Any, **__: Any) -> Any:
        recorder.note("torch.compile and torch.jit are left out: traced in eager mode")
        return program if program is not None else (lambda wrapped: wrapped)

    torch.compile = torch.jit.script = unchanged
    torch.nn.Module.compile = lambda self, *_, **__: unchanged(self) and None


def _values() -> None:
    """Skips checks of values, of which there are none: no overflow, every step is taken."""
    import torch.amp.grad_scaler as scaling
    from torch.distributions import Distribution

    def step(self: Any, optimizer: Any, found: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    scaling.GradScaler._maybe_opt_step = step
    Distribution.set_default_validate_args(False)


def _checkpoints(recorder: Recorder, refuse: Refuse) -> None:
    load, places = torch.load, []  # type: Callable[..., Any], list[str]

    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Load to the device used on the server, where the copy takes memory, too."""
        del places[:]
        on_gpu = _on_gpu(map_location)

        def keep(storage: Any, place: str) -> Any:
            places.append(place)
            return storage

        try:
            value = load(file, keep, *args, **kwargs)
        except EOFError:  # an empty file, as `save` leaves them
            if _UNWRITTEN in recorder.notes:
                refuse(f"{_UNWRITTEN} by a trace, and cannot be loaded again")
            raise
        if on_gpu is None:
            on_gpu = any(place.startswith("cuda") for place in places)
        return _moved(value) if on_gpu else value

    def save(value: Any, file: Any, *_: Any, **__: Any) -> None:
        recorder.note(_UNWRITTEN)
        if not hasattr(file, "write"):
            Path(file).touch()

    torch.load, torch.save = loaded, save


def _on_gpu(map_location: Any) -> bool | None:
    """None if the file itself says where its tensors go."""
    if isinstance(map_location, dict):
        map_location = next(iter(map_location.values()), None)
    if map_location is None:
        return None
    if callable(map_location):  # `lambda storage, place: storage`, or `storage.cuda()`
        try:
            kept = map_location(torch.UntypedStorage(0), "cpu")
        except Exception:  # noqa: BLE001  the script's own; there is no GPU to move it to
            return True
        return None if kept is None else False
    return torch.device(map_location).type == "cuda"


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, dict):
        for key in value:
            value[key] = _moved(value[key])
        return value
    if isinstance(value, torch.nn.Module):
        return value.cuda()
    if type(value) in (list, tuple):
        return type(value)(_moved(item) for item in value)
    return value
