"""How an attempt ended: what its supervisor recorded in its directory, the end of its log, and the
`Exit` that follows.

The exit status comes first: a job that succeeded did not run out of memory, whatever its log says.
What a stop by CARMA means for the job is for the core to decide.

None of the records is trusted: each is either entirely valid or rejected, so no reader has to
expect an odd one. What the log says is in `clues`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from carmad.attempt import starting, supervisor
from carmad.attempt.clues import classify, head, last_lines, tells_why
from carmad.core.jobs.attempt import FOR_GOOD, MAX_ID, SILENT, Cause, Exit, JobId
from carmad.core.jobs.job import Job

# -- directories of attempts, named ID.ATTEMPT, and records in them


def attempt_folders(jobs: Path, which: str = "*") -> dict[Path, JobId]:
    """The directories of attempts in `jobs` whose names match, with the job of each."""
    found = sorted(jobs.glob(which))
    return {path: job for path in found if (job := _job_of(path.name)) is not None}


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
    """How an attempt ended."""

    code: Annotated[int, Field(ge=0, le=255)] | None
    signal: Annotated[int, Field(ge=1, le=64)] | None
    error: _Text
    hint: _Text
    started_at: _Seconds
    ended_at: _Seconds
    host_oom_kills: Annotated[int, Field(lt=1 << 63)] | None
    stopped: bool
    interrupted: bool
    ended_boot_s: _Seconds | None
    cause: _Text
    main_ended_boot_s: _Seconds | None
    over_limit: Annotated[int, Field(lt=1 << 63)] | None
    shared_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None
    left: Annotated[int, Field(ge=0, lt=1 << 31)]
    background: Annotated[int, Field(ge=0, lt=1 << 31)]


_STARTED = TypeAdapter(StartRecord)
_EXITED = TypeAdapter(ExitRecord)


def read_start(directory: Path) -> StartRecord | None:
    """None if there is no record. Raises ValueError if it is invalid."""
    return _read(directory / supervisor.STARTED, _STARTED)


def read_exit(directory: Path) -> ExitRecord | None:
    """None if there is no record. Raises ValueError if it is invalid."""
    return _read(directory / supervisor.EXIT, _EXITED)


def is_alive(directory: Path) -> bool:
    """Whether the attempt's supervisor, which has started, lives. Raises OSError if that is
    unknown."""
    try:
        lock = os.open(directory / supervisor.LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def tail(directory: Path) -> str:
    """The log's end, as recorded."""
    return as_shown(_bytes(directory / supervisor.TAIL, TAIL_BYTES) or b"")


def as_shown(log: bytes) -> str:
    """A part of a log as a terminal would show it: only the last state of a progress bar."""
    text = log.decode("utf-8", "replace")
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
    background: int = 0  # of its processes were left, to go on, and were ended
    log_tail: str = ""  # the end of stdout, then of stderr
    memory_held: bool = False  # its GPU memory was not seen to be freed in time

    @classmethod
    def of(
        cls, record: ExitRecord, log_tail: str, clock_at: Callable[[float | None], float | None]
    ) -> Self:
        """From the supervisor's record. `clock_at` converts seconds since boot to the daemon's
        clock; None: the record is of another boot."""
        kills = record.host_oom_kills
        crashed = record.signal is not None or (record.code or 0) > 128  # the latter from a shell
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
            # Nor did a program that crashed leave its workers on purpose.
            background=0 if record.stopped or record.interrupted or crashed else record.background,
            log_tail=log_tail,
        )


def for_good(cause: str) -> Cause | None:
    """The recorded cause of a stop, if it is final."""
    return next((each for each in FOR_GOOD if each == cause), None)


def exit_of(job: Job, facts: ExitFacts, full: str) -> Exit:
    """How the job's attempt ended. Never raises: it has ended, and its GPUs are free.

    `full`: which of its GPUs was full then, and how full, in words; "" if none was.
    """
    try:
        exit = _explain(job, facts, full)
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


def _explain(job: Job, facts: ExitFacts, full: str) -> Exit:
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
        facts.code, facts.signal, facts.log_tail, host_oom=facts.host_oom, gpu_full=bool(full)
    )
    if full and exit.cause is Cause.FAILURE and exit.code and not tells_why(facts.log_tail):
        # Not counted as out of memory: it would run again, before all others and alone on a GPU,
        # for whatever error it may have had.
        return replace(exit, evidence=f"{SILENT}; {full} when it ended")
    limit_mib = job.spec.host_memory_mib
    if exit.cause is Cause.HOST_OOM and facts.over_limit and limit_mib:
        size = f"{limit_mib}M" if limit_mib % 1024 else f"{limit_mib // 1024}G"
        evidence = f"its processes used more than --mem {size}"
        if shared_mib := (facts.shared_bytes or 0) >> 20:
            evidence += f", {shared_mib} MiB of it in files in /dev/shm"
        exit = replace(exit, evidence=evidence)
    return exit
