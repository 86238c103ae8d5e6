"""A user's own process that a job is to follow: found by pid, verified by the kernel's records."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from carmad.attempt.forks import ask
from carmad.attempt.proc import process_stat, read_file, uids
from carmad.core.types import Job
from carmad.errors import CarmaError

# Only root can make cgroups of these names: below /slurm (v1), or in a scope of its own (v2). Where
# several slurmds may share a machine, as in Debian, the node's name is in both. Slurm 26.05 has no
# number there by default.
_SLURM_CGROUP = re.compile(
    rb"^\d+:[^:]*:/(?:slurm(?:_[^/]*)?|system\.slice/[^/]*slurmstepd\.scope)/(?:uid_\d+/)?job_(\d+)\b",
    re.MULTILINE,
)
TITLE_WITHIN_S = 5.0
_SLURMSTEPD = re.compile(rb"slurmstepd: \[(\d+)\.")  # its title; it starts a step's processes


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


def slurm_job_of(pid: int) -> int | None:
    """The Slurm job that this process is part of; None: of none.

    By its cgroup, or, where that does not say, by a slurmstepd of root's among its ancestors: not
    by its environment, as whoever is left to Slurm is not moved into CARMA's unit. Of a process
    that is not root's through and through, not even the title is read: it could make that hang.
    """
    try:
        if (job := slurm_job_in(read_file(f"/proc/{pid}/cgroup"))) is not None:
            return job
        while pid > 1 and (stat := process_stat(pid)):
            pid = stat[0]
            if uids(pid) not in ({0}, {os.geteuid()}):
                continue
            if found := _SLURMSTEPD.match(read_file(f"/proc/{pid}/cmdline")):
                return int(found[1])
    except OSError:
        pass  # it has ended
    return None


def slurm_job_in(cgroups: bytes) -> int | None:
    """Likewise, of a process with these cgroups, as in /proc/PID/cgroup."""
    found = _SLURM_CGROUP.search(cgroups)
    return int(found[1]) if found else None


def title_of(pid: int) -> tuple[list[str], str]:
    """The arguments and the directory of a user's process. Raises CarmaError.

    A process of its own reads them: whoever does waits for as long as that process likes."""
    try:
        title = ask("carmad.attempt.marks", "write_title", str(pid), within_s=TITLE_WITHIN_S)
    except OSError as error:
        raise CarmaError(
            f"the command and directory of process {pid} cannot be read",
            "It may have ended, or wait for a file system that does not answer.",
        ) from error
    directory, *words = os.fsdecode(title).removesuffix("\0").split("\0")
    return words, directory
