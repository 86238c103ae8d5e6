"""Finds out why a process ended, from its exit status and the end of its log. Pure; never raises.

The exit status comes first: a job that succeeded did not run out of memory, whatever its log says.
Stops by CARMA are the core's business and are not looked for here.

The log is written by untrusted users and read in the daemon. So each pattern begins with literal
text and has no unbounded repetition: matching takes linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from carmad.plugin import Cause, Exit

HEAD_LINE = 300  # characters kept of an evidence line
LAST_LINES = 10
AROUND = 2048  # characters of a line that are read before and after its clue


@dataclass(frozen=True, slots=True)
class Clue:
    """Text in a line that indicates a cause. `if_full`: ambiguous, counts only on a full GPU."""

    pattern: re.Pattern[str]
    cause: Cause
    if_full: bool = False


def _words(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose spaces also match line breaks: rich, which prints the tracebacks of
    many programs, wraps messages."""
    return re.compile(pattern.replace(" ", "[ \n]{1,2}"))


def _clue(pattern: str, cause: Cause = Cause.GPU_OOM, if_full: bool = False) -> Clue:
    return Clue(_words(pattern), cause, if_full)


# What PyTorch, CUDA and the libraries around them print; see docs/concepts/recovery.md.
CLUES: tuple[Clue, ...] = (
    _clue(
        r"CUDA out of memory\. Allocation was preemptively rejected because it would exceed"
        r" per_process_memory_fraction",
        Cause.FAILURE,  # the program's own limit, not the GPU's
    ),
    _clue(r"OutOfMemoryError: CUDA out of memory\."),
    _clue(r"RuntimeError: CUDA out of memory\. Tried to allocate"),
    _clue(r"CUDA error: out of memory"),
    _clue(r"CUDA driver error: out of memory"),
    _clue(r"CUDA_ERROR_OUT_OF_MEMORY"),
    _clue(r"cudaErrorMemoryAllocation"),
    _clue(r"CUBLAS_STATUS_ALLOC_FAILED"),
    _clue(r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    _clue(r"CUDNN_STATUS_ALLOC_FAILED"),
    _clue(r"Cuda failure (?:[0-9]{1,6} )?'out of memory'"),
    _clue(r"Failed to CUDA [mc]alloc"),
    _clue(r"RESOURCE_EXHAUSTED: Out of memory"),
    _clue(r"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating [0-9]"),
    _clue(r"ResourceExhaustedError[^\n]{0,300}device:GPU"),
    _clue(r"OOM when allocating tensor[^\n]{0,300}device:GPU"),
    _clue(r"CUBLAS_STATUS_NOT_INITIALIZED", if_full=True),
    _clue(r"CUDNN_STATUS_NOT_INITIALIZED", if_full=True),
    _clue(r"ncclUnhandledCudaError", if_full=True),
    _clue(r"unhandled cuda error", if_full=True),
    _clue(r"MemoryError: Unable to allocate", Cause.HOST_OOM),
    _clue(r"DefaultCPUAllocator: can't allocate memory", Cause.HOST_OOM),
    _clue(
        r"DataLoader worker \(pid [^\n]{0,40}\) is killed by signal: Killed",
        Cause.HOST_OOM,
    ),
)

_SIZE = r"([0-9]{1,9}(?:\.[0-9]{1,4})?) (B|[KMGT]iB|bytes)"
_TRIED = _words(rf"Tried to allocate {_SIZE}")
_FREE = _words(rf"of which {_SIZE} is free")
_FREE_BEFORE_2_0 = _words(rf"; {_SIZE} free;")
_UNUSED = _words(rf"and {_SIZE} is reserved by PyTorch but unallocated")
_MIB = {"B": 2**-20, "bytes": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}


def classify(
    code: int | None,
    signal: int | None,
    tail: str,
    *,
    host_oom: bool | None = None,
    gpu_full: bool = False,
) -> Exit:
    """How an attempt ended, from its `code`, or the `signal` that ended it, and its log's tail.

    `host_oom`: whether the kernel's OOM killer struck in the job's cgroup (None: unknown);
    `gpu_full`: whether a GPU of the job was full in the job's last sample.
    """
    if code == 0:
        return Exit(Cause.SUCCESS, code)
    if host_oom:
        return Exit(Cause.HOST_OOM, code, signal, "the kernel's OOM killer struck in its cgroup")
    found = _last_clue(tail, gpu_full)
    if found is None:
        return Exit(Cause.FAILURE, code, signal, head(tail.rstrip().rpartition("\n")[2].lstrip()))
    clue, line, around = found
    return Exit(
        clue.cause,
        code,
        signal,
        head(line.strip()),
        tried_mib=_mib(around, _TRIED),
        free_mib=_mib(around, _FREE, _FREE_BEFORE_2_0),
        unused_mib=_mib(around, _UNUSED),
    )


def last_lines(tail: str) -> tuple[str, ...]:
    """The last lines of a log's tail that are not empty, each cut and safe to show; some 3 KB."""
    lines = [line for line in tail[-LAST_LINES * AROUND :].splitlines() if line.strip()]
    return tuple(head(line.rstrip()) for line in lines[-LAST_LINES:])


def _last_clue(tail: str, gpu_full: bool) -> tuple[Clue, str, str] | None:
    """The last line with a clue, cut to `AROUND`, and the same with the lines after it, on which a
    wrapped message goes on; of several clues in it, the first in `CLUES`."""
    found: tuple[Clue, re.Match[str]] | None = None
    latest = -1  # where that line begins
    for clue in CLUES:
        last = None
        for match in clue.pattern.finditer(tail) if gpu_full or not clue.if_full else ():
            last = match
        if last is not None:
            begin = tail.rfind("\n", 0, last.start()) + 1
            if begin > latest:
                found, latest = (clue, last), begin
    if found is None:
        return None
    clue, last = found
    begin, end = max(latest, last.start() - AROUND), last.end() + AROUND
    around = tail[begin:end]
    line = around[: last.end() - begin] + around[last.end() - begin :].partition("\n")[0]
    return clue, line, around


def head(said: str, most: int = HEAD_LINE) -> str:
    """The beginning of a job's output, as one line that is safe to store, log and show."""
    line = "".join(
        " " if c.isspace() else c if c.isprintable() else "\ufffd" for c in said[: most + 1]
    )
    return line if len(line) <= most else line[: most - 1] + "…"


def _mib(line: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if match := pattern.search(line):
            return round(float(match[1]) * _MIB[match[2]])
    return None
