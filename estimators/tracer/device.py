"""Makes `torch.cuda` look as on the server.

The GPU has the name, size and compute capability of the server's. Streams and events do nothing,
as the trace has only one stream. Random states are the CPU's.

It runs out of memory where the script waits for that, because it looks for the largest batch that
fits. Any other script is traced as if the GPU were larger, and its report says how much it needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, Callable, Iterator

import torch

from .recording import Recorder
from .report import Report

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
_NAME, _WORDS = "OutOfMemoryError", "out of memory"
_NAMES = frozenset((_NAME, "should_reduce_batch_size", "is_oom_error"))  # Accelerate, Lightning
FULL = "it tries until the GPU is full, as it would on the server: what it takes is what there is"
_UNKNOWN = ("NVIDIA A100-SXM4-80GB", (8, 0), 80)
_OTHER = "Tesla T4"  # what it may be instead, if it is not known
# What these do has no effect on the trace.
_NOTHING = (
    *("init", "_lazy_init", "_lazy_call", "synchronize", "ipc_collect", "set_stream"),
    *("set_sync_debug_mode", "set_per_process_memory_fraction", "reset_accumulated_memory_stats"),
    *("seed", "seed_all"),
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

    use: Callable[[Any], None]  # of the recorder

    def __init__(self, device: Any = None) -> None:
        self.idx = self.prev_idx = 0
        if isinstance(device, (int, str, torch.device)):
            self.use(device)

    def __enter__(self) -> _Current:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Properties(SimpleNamespace):
    """A GPU's. The memory is nominal: a script that depends on it may do something else there."""

    size: int
    choose: Callable[[Any, Any], Any]

    @property
    def total_memory(self) -> int:
        return int(self.choose(self.size, self.size // 2))


def visible(gpus: int) -> int:
    """How many GPUs the script sees: the job's, unless it chose among them itself."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    ids = (one.strip() for one in chosen.split(","))
    return sum(1 for _ in takewhile(lambda one: one and not one.startswith("-"), ids))


def pretend(recorder: Recorder, gpu: str, gpus: int) -> None:
    """Make `torch` look as if it had `gpus` GPUs of this model, the first of them in use."""
    _cuda(recorder, gpu, gpus)
    _accelerator(gpus)


def _cuda(recorder: Recorder, gpu: str, gpus: int) -> None:
    name, capability, size = model(gpu)
    recorder.memory = size
    recorder.full = _raiser(recorder)
    _Current.use = staticmethod(recorder.use)
    properties = _properties(name, capability, size, recorder)
    used, most = (lambda *_, **__: recorder.live), (lambda *_, **__: recorder.peak)
    constants: dict[str, Any] = {
        "is_initialized": True,
        "_is_compiled": True,
        "current_device": 0,
        **_of_the_model(name, capability, properties),
        "is_bf16_supported": capability >= (8, 0),
        "is_tf32_supported": capability >= (8, 0),
        "can_device_access_peer": True,
        "is_current_stream_capturing": False,
        "utilization": 0,
        "memory_summary": "",
        "initial_seed": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        **dict.fromkeys(_NOTHING),
    }
    functions: dict[str, Any] = {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.default_generator.manual_seed),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(gpus)],
        "set_rng_state": lambda state, device=None: _set_rng_state(state),
        "set_rng_state_all": lambda states: _set_rng_state(states[0]),
        "is_available": lambda: visible(gpus) > 0,
        "device_count": lambda: visible(gpus),
        "memory_allocated": used,
        "memory_reserved": used,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "mem_get_info": lambda *_: (max(0, properties.total_memory - recorder.live), size),
        "memory_stats": lambda *_: defaultdict(int),
        "set_device": recorder.use,
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
        other = model(_OTHER)
        others = _of_the_model(*other[:2], _properties(*other, recorder))
        functions.update((key, _guess(constants[key], others[key], recorder)) for key in others)
    _replace(functions)


def _properties(
    name: str, capability: tuple[int, int], size: int, recorder: Recorder
) -> _Properties:
    found = _Properties(
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
    found.size, found.choose = size, recorder.choices.choose_of_gpu
    return found


def _of_the_model(
    name: str, capability: tuple[int, int], properties: _Properties
) -> dict[str, Any]:
    """That bfloat16 is supported depends on it as well, but hardly makes a script stop."""
    return {
        "get_device_name": name,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_arch_list": [f"sm_{capability[0]}{capability[1]}"],
    }


def _replace(functions: dict[str, Any]) -> None:
    """Functions and classes of `torch.cuda`, and what else shows that there is no CUDA."""
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for key, value in functions.items():
            if module is torch.cuda or hasattr(module, key):
                setattr(module, key, value)
    for key in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, key, _always(0))
    torch.cuda.nccl.version = _always((2, 27, 3))
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        torch._C._cuda_getCurrentRawStream = _always(0)
    if torch.version.cuda is None:
        torch.version.cuda = "12.6"
        torch.backends.cudnn.version = _always(91_000)
        torch.backends.cudnn.is_available = _always(True)


def _set_rng_state(state: Any) -> None:
    """Numbers for the GPU are drawn on the CPU, whose states are larger than those that a script
    may have saved on a GPU."""
    if state.is_cpu and state.shape == torch.get_rng_state().shape:
        torch.set_rng_state(state)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _guess(value: Any, other: Any, recorder: Recorder) -> Callable[..., Any]:
    return lambda *_, **__: recorder.choices.choose_of_gpu(value, other)


def _accelerator(gpus: int) -> None:
    accelerator: Any = torch.accelerator
    values = {
        "is_available": True,
        "device_count": gpus,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "current_device_idx": 0,
        "synchronize": None,
    }
    for key, value in values.items():
        setattr(accelerator, key, _always(value))
    accelerator.set_device_index = accelerator.set_device_idx = torch.cuda.set_device
    accelerator.current_stream = lambda device=None: _Stream()
    torch._C._get_accelerator = _always(torch.device("cuda"))


# -- running out of memory


def _raiser(recorder: Recorder) -> Callable[[int], None]:
    """What it returns is called from any thread."""

    def full(nbytes: int) -> None:
        main = threading.main_thread().ident  # another after a fork
        if any(map(_waits, _stack(sys._current_frames().get(main or 0)))):
            recorder.note(FULL)
            mib, has_mib = (round(size / 2**20, 2) for size in (nbytes, recorder.memory))
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mib} MiB. GPU 0 has a total capacity of "
                f"{has_mib} MiB"
            )

    return full


def within_memory(report: Report, recorder: Recorder) -> Report:
    """A GPU that was full once: the allocator gave its cache back before it failed."""
    if FULL not in recorder.notes or report.most <= recorder.memory:
        return report
    memory = int(recorder.memory)
    above = max(0, report.reserved - memory)
    parts = {**report.parts, "cached": report.parts["cached"] - above}
    return replace(report, reserved=report.reserved - above, most=memory, parts=parts)


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _waits(code: CodeType) -> bool:
    """Whether the function names the error, or what it says, and may catch it."""
    may_catch = getattr(code, "co_exceptiontable", True)  # Python 3.11
    named = not _NAMES.isdisjoint(code.co_names)
    return bool(may_catch) and (named or any(_WORDS in text for text in _texts(code.co_consts)))


def _texts(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value.lower()
        elif isinstance(value, tuple):
            yield from _texts(value)
