"""A user's own process that a job is to follow: found by pid, verified by the kernel's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carmad.attempt.process_tree import process_stat
from carmad.core.types import Job
from carmad.errors import CarmaError


@dataclass(frozen=True, slots=True)
class Process:
    """A pid alone would not identify it: the kernel uses pids again."""

    pid: int
    start_ticks: int  # since boot


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process needs to run a job at a terminal."""

    job: Job
    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # what to set, or (None) to unset


def own_process(pid: int, uid: int) -> Process:
    """The process, if it is the user's. Raises CarmaError."""
    before = process_stat(pid) if pid > 0 else None
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        status = ""
    if before is None or not status or process_stat(pid) != before:
        raise CarmaError(
            f"carmad sees no process {pid}",
            "It has ended, or runs in a container that carmad cannot look into.",
        )
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    if set(uids) != {str(uid)}:
        raise CarmaError(f"process {pid} is not yours", "Name a process of your own.")
    return Process(pid, before[1])
