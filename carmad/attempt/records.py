"""Reads what a supervisor wrote into its attempt's directory, and trusts none of it.

A record is either entirely valid or rejected, so no reader has to expect an odd one.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from carmad.attempt import starting, supervisor

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
