"""A user's own process that a job is to follow: found by pid, verified by the kernel's records."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from carmad.attempt.proc import process_stat, uids
from carmad.attempt.starting import program
from carmad.children import hear
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Allocation
from carmad.edge import SubmissionCheck
from carmad.errors import CarmaError
from carmad.guards import refuse_on_failure_of

TITLE_WITHIN_S = 5.0


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
    found = uids(pid)
    if before is None or not found or process_stat(pid) != before:
        raise CarmaError(
            f"carmad sees no process {pid}",
            "It has ended, or runs in a container that carmad cannot look into.",
        )
    if found != {uid}:
        raise CarmaError(f"process {pid} is not yours", "Name a process of your own.")
    return Process(pid, before[1])


def allocation_of(checks: Iterable[SubmissionCheck], pid: int) -> Allocation | None:
    """Another resource manager's, that this process is part of. Raises CarmaError."""
    for each in checks:
        with refuse_on_failure_of(each):
            if found := each.allocation(pid):
                return found
    return None


def title_of(pid: int) -> tuple[list[str], str]:
    """The arguments and the directory of a user's process. Raises CarmaError.

    A process of its own reads them: whoever does waits for as long as that process likes."""
    words = [*program("carmad.attempt.marks", "write_title"), str(pid)]
    try:
        reader = subprocess.Popen(
            words, env={}, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        title = hear(reader, TITLE_WITHIN_S)
        if reader.returncode:
            raise ProcessLookupError
    except (OSError, subprocess.SubprocessError) as error:
        raise CarmaError(
            f"the command and directory of process {pid} cannot be read",
            "It may have ended, or wait for a file system that does not answer.",
        ) from error
    directory, *words = os.fsdecode(title).removesuffix("\0").split("\0")
    return words, directory
