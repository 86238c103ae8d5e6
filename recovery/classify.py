"""From how a process ended and what it last printed to the cause of its end. Pure.

The exit status comes first: a job that ended well did not run out of memory, whatever its log
says. Our own kills are known to the core, which asked for them, and are not looked for here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from carmad.plugin import Cause, Exit

HEAD_LINE = 300  # of an evidence line, in characters


@dataclass(frozen=True, slots=True)
class Clue:
    """A line that names a cause. `if_full`: ambiguous, counts only when the GPU was full."""

    pattern: re.Pattern[str]
    cause: Cause
    if_full: bool = False


def _clue(pattern: str, cause: Cause = Cause.GPU_OOM, if_full: bool = False) -> Clue:
    return Clue(re.compile(pattern), cause, if_full)


# What PyTorch, CUDA and the libraries around them print; see docs/concepts/recovery.md.
CLUES: tuple[Clue, ...] = (
    _clue(
        r"CUDA out of memory\. Allocation was preemptively rejected because it would exceed"
        r" per_process_memory_fraction",
        Cause.FAILURE,  # the program's own cap, not the GPU's end
    ),
    _clue(r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError: CUDA out of memory\."),
    _clue(r"RuntimeError: CUDA out of memory\. Tried to allocate"),
    _clue(r"CUDA (?:driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"),
    _clue(r"cudaErrorMemoryAllocation"),
    _clue(r"CUBLAS_STATUS_ALLOC_FAILED"),
    _clue(r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|CUDNN_STATUS_ALLOC_FAILED"),
    _clue(r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA [mc]alloc"),
    _clue(r"RESOURCE_EXHAUSTED: Out of memory"),
    _clue(r"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating [\d,]+ bytes"),
    _clue(r"(?:ResourceExhaustedError|OOM when allocating tensor).*device:GPU"),
    _clue(r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_NOT_INITIALIZED", if_full=True),
    _clue(r"ncclUnhandledCudaError|unhandled cuda error", if_full=True),
    _clue(r"MemoryError: Unable to allocate", Cause.HOST_OOM),
    _clue(r"DefaultCPUAllocator: can't allocate memory", Cause.HOST_OOM),
    _clue(r"DataLoader worker \(pid .*\) is killed by signal: Killed", Cause.HOST_OOM),
)

_SIZE = r"([\d.]+) (B|[KMGT]iB|bytes)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free;")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_MIB = {"B": 2**-20, "bytes": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}


def classify(
    code: int | None,
    signal: int | None,
    tail: str,
    *,
    host_oom: bool | None = None,
    gpu_full: bool = False,
) -> Exit:
    """The end of an attempt: `code`, or the `signal` that ended it, and its log's tail.

    `host_oom` says that the kernel's OOM killer struck in the job's cgroup (None: it cannot be
    told); `gpu_full` says that a GPU of the job had next to nothing free at its last sample.
    """
    if code == 0:
        return Exit(Cause.SUCCESS, code)
    if host_oom:
        return Exit(Cause.HOST_OOM, code, signal, "the kernel's OOM killer struck in its cgroup")
    found = _last_clue(tail, gpu_full)
    if found is None:
        return Exit(Cause.FAILURE, code, signal, _last_line(tail))
    clue, line = found
    return Exit(
        clue.cause,
        code,
        signal,
        _head(line),
        tried_mib=_mib(_TRIED, line),
        free_mib=_mib(_FREE, line),
        unused_mib=_mib(_UNUSED, line),
    )


def _last_clue(tail: str, gpu_full: bool) -> tuple[Clue, str] | None:
    """The last telling line; on one line the table's order decides."""
    for line in reversed(tail.splitlines()):
        for clue in CLUES:
            if (gpu_full or not clue.if_full) and clue.pattern.search(line):
                return clue, line.strip()
    return None


def _last_line(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return _head(lines[-1]) if lines else ""


def _head(line: str) -> str:
    return line if len(line) <= HEAD_LINE else line[: HEAD_LINE - 1] + "…"


def _mib(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None]
    return round(float(number) * _MIB[unit])
