"""The state of a process as CUDA's driver sees it, and what can be done to it: CUDA's process
checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

Moves = Sequence[tuple[str, str]]  # UUIDs of GPUs: from which to which

LOCK_WITHIN_S = 10.0  # where a resume has to be undone
LOOKS = 3  # for processes that begin to use a GPU meanwhile


class State(StrEnum):
    """Of a process, as the driver sees it."""

    RUNNING = "running"
    LOCKED = "locked"  # its next CUDA call waits
    CHECKPOINTED = "checkpointed"  # locked, with its GPU memory in host memory
    FAILED = "failed"  # for good
    NONE = "none"  # it does not use CUDA, or is gone


INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801
_WORDS = {
    OUT_OF_MEMORY: "there is not enough free memory on the GPU",
    OPERATING_SYSTEM: "the driver may not do that to it (only root may), or cannot do it any more",
    ILLEGAL_STATE: "it is in another state than the call is for",
    NOT_READY: "its kernels did not end in time",
    NOT_SUPPORTED: "the driver cannot suspend such a process (a client of MPS, on a MIG instance,"
    " or on an ARM machine)",
}


class DriverError(Exception):
    """`code`: the driver's, as in cuda.h."""

    def __init__(self, code: int, words: str = "") -> None:
        self.code = code
        self.words = words or _WORDS.get(code, f"CUDA error {code}")
        super().__init__(self.words)


class Driver(Protocol):
    """What can be done to a process, by its pid. All raise DriverError."""

    def state(self, pid: int) -> State: ...

    def lock(self, pid: int, within_s: float) -> None:
        """From RUNNING to LOCKED, when what it has given to the GPU is done."""
        ...

    def checkpoint(self, pid: int) -> None:
        """From LOCKED to CHECKPOINTED."""
        ...

    def restore(self, pid: int, moves: Moves) -> None:
        """From CHECKPOINTED to LOCKED. `moves`: all its GPUs, if it moves to others."""
        ...

    def unlock(self, pid: int) -> None:
        """From LOCKED to RUNNING."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Not `done` and not `lost`: the job is as it was before. `lost`: it is of no use any more, as
    not all its processes can be brought to either state. `hung`: the driver did not answer."""

    done: bool
    why: str = ""
    lost: bool = False
    hung: bool = False


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it, or its cgroup is frozen: the driver would wait for it."""
    return _letter(pid) in ("T", "t") or any(
        "frozen 1" in _text(f"{mount}{line[3:]}/cgroup.events")
        for line in _text(f"/proc/{pid}/cgroup").splitlines()
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        if line.startswith("0::")
    )


def is_gone(pid: int) -> bool:
    return _letter(pid) in ("", "Z", "X")


def _letter(pid: int) -> str:
    """The state of a process as `ps` shows it; "": there is none."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
