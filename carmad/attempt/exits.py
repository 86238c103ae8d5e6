"""How an attempt ended: what its supervisor recorded in its directory, the end of its log, and the
`Exit` that follows.

The exit status comes first: a job that succeeded did not run out of memory, whatever its log says.
What a stop by CARMA means for the job is for the core to decide.

None of the records is trusted: each is either entirely valid or rejected, so no reader has to
expect an odd one. The log is written by untrusted users and read in the daemon. So each pattern
begins with literal text and has no unbounded repetition: matching takes linear time.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from carmad.attempt import starting, supervisor
from carmad.core.attempt import MAX_ID
from carmad.core.types import FOR_GOOD, Cause, Exit, Job, JobId

# -- directories of attempts, named ID.ATTEMPT, and records in them


def attempt_folders(jobs: Path) -> dict[Path, JobId]:
    """The directories of attempts in `jobs`, with the job of each."""
    return {path: job for path in sorted(jobs.glob("*")) if (job := _job_of(path.name)) is not None}


def strange_entries(jobs: Path) -> list[Path]:
    """Whatever in `jobs` is not the directory of an attempt."""
    return [path for path in sorted(jobs.glob("*")) if _job_of(path.name) is None]


def _job_of(name: str) -> JobId | None:
    numbers = name.split(".")
    if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        return None
    job = int(numbers[0])
    # Only as the launcher writes it: 007 is not job 7's directory.
    return JobId(job) if 0 < job < MAX_ID and str(job) == numbers[0] else None


T = TypeVar("T")

# These errors are due to our own lack of resources and say nothing about the file or process.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
MOST_BYTES = 1 << 20  # of a record: a supervisor writes some kilobytes
TAIL_BYTES = 2 * supervisor.TAIL_BYTES  # both logs' ends

_SOUND = ConfigDict(strict=True, allow_inf_nan=False)
_Seconds = Annotated[float, Field(ge=0, lt=1e11)]  # any such time can be displayed
_Text = Annotated[str, Field(max_length=2 * starting.REPORT_BYTES)]


@with_config(_SOUND)
@dataclass(frozen=True, slots=True)
class StartRecord:
    """The start of an attempt: by which process, and when."""

    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    start_ticks: Annotated[int, Field(ge=0, lt=1 << 63)]
    boot_id: _Text
    at: _Seconds
    follows: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None  # a main process of the owner's
    cgroup: _Text | None = None  # of all that belongs to the attempt


@with_config(_SOUND)
@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How an attempt ended. Records of earlier releases lack some of the last fields."""

    code: Annotated[int, Field(ge=0, le=255)] | None
    signal: Annotated[int, Field(ge=1, le=64)] | None
    error: _Text
    hint: _Text
    started_at: _Seconds
    ended_at: _Seconds
    host_oom_kills: Annotated[int, Field(lt=1 << 63)] | None
    stopped: bool
    interrupted: bool
    ended_boot_s: _Seconds | None = None
    cause: _Text = ""
    main_ended_boot_s: _Seconds | None = None
    over_limit: Annotated[int, Field(lt=1 << 63)] | None = None
    shared_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    left: Annotated[int, Field(ge=0, lt=1 << 31)] = 0


_STARTED = TypeAdapter(StartRecord)
_EXITED = TypeAdapter(ExitRecord)


def read_start(directory: Path) -> StartRecord | None:
    """None if there is no record. Raises ValueError if it is invalid."""
    return _read(directory / supervisor.STARTED, _STARTED)


def read_exit(directory: Path) -> ExitRecord | None:
    """None if there is no record. Raises ValueError if it is invalid."""
    return _read(directory / supervisor.EXIT, _EXITED)


def tail(directory: Path) -> str:
    """The log's end as a terminal would show it: only the last state of a progress bar."""
    text = (_bytes(directory / supervisor.TAIL, TAIL_BYTES) or b"").decode("utf-8", "replace")
    if "\r" not in text:
        return text
    return "\n".join(
        line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in text.split("\n")
    )


def _read(path: Path, adapter: TypeAdapter[T]) -> T | None:
    data = _bytes(path, MOST_BYTES)
    return None if data is None else adapter.validate_json(data)


def _bytes(path: Path, most: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return None


log = logging.getLogger(__name__)

HEAD_LINE = 300  # characters kept of an evidence line
LAST_LINES = 10
AROUND = 2048  # characters of a line that are read before and after its clue
MOST_SAID = 2000  # characters of why a launch failed: a path in it may be long


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitFacts:
    """What is known of an attempt's end, without interpretation. Times are Unix seconds: the start
    by the wall clock, the ends by the daemon's clock."""

    code: int | None = None  # of the main process; None when `signal` ended it
    signal: int | None = None
    error: str = ""  # why the program could not be started at all
    hint: str = ""
    lost: bool = False  # its supervisor died, or was ended by a system shutdown
    never_started: bool = False  # no supervisor started, and none will
    started_at: float | None = None
    ended_at: float
    main_ended_at: float | None = None  # its main process; the others may live a little longer
    stopped: bool = False  # the daemon stopped it before it ended by itself
    cause: Cause | None = None  # why it was stopped, if for good
    host_oom: bool | None = None  # the kernel's OOM killer struck; None: unknown
    over_limit: bool = False  # it did because the job met its own limit
    shared_bytes: int | None = None  # of files in /dev/shm when it did
    left: bool = False  # some of its processes could not be killed
    log_tail: str = ""  # the end of stdout, then of stderr
    memory_held: bool = False  # its GPU memory was not seen to be freed in time

    @classmethod
    def of(
        cls, record: ExitRecord, log_tail: str, clock_at: Callable[[float | None], float | None]
    ) -> Self:
        """From the supervisor's record. `clock_at` converts seconds since boot to the daemon's
        clock; None: the record is of another boot."""
        kills = record.host_oom_kills
        return cls(
            code=record.code,
            signal=record.signal,
            error=record.error,
            hint=record.hint,
            # A job that succeeded during a system shutdown has succeeded.
            lost=record.interrupted and not record.stopped and record.code != 0,
            started_at=record.started_at,
            ended_at=clock_at(record.ended_boot_s) or record.ended_at,
            main_ended_at=clock_at(record.main_ended_boot_s),
            stopped=record.stopped,
            cause=for_good(record.cause),
            host_oom=None if kills is None else kills > 0,
            over_limit=bool(record.over_limit),
            shared_bytes=record.shared_bytes,
            left=record.left > 0,
            log_tail=log_tail,
        )


def for_good(cause: str) -> Cause | None:
    """The recorded cause of a stop, if it is final."""
    return next((each for each in FOR_GOOD if each == cause), None)


def exit_of(job: Job, facts: ExitFacts, is_gpu_full: Callable[[], bool]) -> Exit:
    """How the job's attempt ended. Never raises: it has ended, and its GPUs are free.

    `is_gpu_full`: see `classify`.
    """
    try:
        exit = _explain(job, facts, is_gpu_full)
    except Exception:
        log.exception("cannot tell why job %d ended", job.id)
        exit = Exit(Cause.FAILURE, facts.code, facts.signal)
    if facts.stopped and exit.cause is Cause.SUCCESS:
        # A job that saves its work when stopped, and exits with 0, has not finished.
        exit = replace(exit, cause=Cause.CANCELLED)
    if exit.cause is not Cause.SUCCESS:
        exit = replace(exit, tail=last_lines(facts.log_tail))
    return replace(exit, left=True) if facts.left else exit


def launch_failure(message: str, hint: str) -> Exit:
    """Part of the message may come from the job's own shell."""
    evidence = head(f"{message}; {hint}" if hint else message, most=MOST_SAID)
    return Exit(Cause.LAUNCH_FAILED, evidence=evidence)


def _explain(job: Job, facts: ExitFacts, is_gpu_full: Callable[[], bool]) -> Exit:
    if facts.error:
        return launch_failure(facts.error, facts.hint)
    if facts.never_started:
        return Exit(Cause.UNSTARTED, evidence="its supervisor did not start in time")
    if facts.lost:
        return Exit(Cause.LOST, evidence="its supervisor is gone: a reboot, or it was killed")
    if facts.code is None and facts.signal is None and not facts.stopped:
        evidence = "how it ended is not known: whoever had started it was gone by then"
        return Exit(Cause.FAILURE, evidence=evidence)
    exit = classify(
        facts.code, facts.signal, facts.log_tail, host_oom=facts.host_oom, gpu_full=is_gpu_full()
    )
    limit_mib = job.spec.host_memory_mib
    if exit.cause is Cause.HOST_OOM and facts.over_limit and limit_mib:
        size = f"{limit_mib}M" if limit_mib % 1024 else f"{limit_mib // 1024}G"
        evidence = f"its processes used more than --mem {size}"
        if shared_mib := (facts.shared_bytes or 0) >> 20:
            evidence += f", {shared_mib} MiB of it in files in /dev/shm"
        exit = replace(exit, evidence=evidence)
    return exit


# -- what a log says


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
    """How an attempt ended, from its `code`, or the `signal` that ended it, and its log's tail. It
    reads nothing else.

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


def head(text: str, most: int = HEAD_LINE) -> str:
    """The beginning of a job's output, as one line that is safe to store, log and show."""
    line = "".join(
        " " if c.isspace() else c if c.isprintable() else "\ufffd" for c in text[: most + 1]
    )
    return line if len(line) <= most else line[: most - 1] + "…"


def _mib(line: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if match := pattern.search(line):
            return round(float(match[1]) * _MIB[match[2]])
    return None
