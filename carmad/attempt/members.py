"""Which processes a running attempt has, and the cgroup that they are in."""

from __future__ import annotations

from pathlib import Path

from carmad.attempt import cgroup, exits, supervisor
from carmad.attempt.proc import running, with_descendants
from carmad.attempt.starting import Launch
from carmad.core.jobs.job import Job


def pids(directory: Path, job: Job) -> frozenset[int]:
    """Those of the attempt in this directory, without its supervisor."""
    if group := find(directory, job):
        return frozenset(cgroup.members(group))
    started = exits.read_start(directory)
    if started is None:
        return frozenset()
    roots = [(started.pid, started.start_ticks)]
    if started.follows:
        pid, start = Launch.loads((directory / supervisor.LAUNCH).read_bytes()).follow or (0, 0)
        roots.append((pid, start))
    alive = {pid: start for pid, start in roots if running(pid, start)}
    return frozenset(with_descendants(alive)) - {started.pid}


def find(directory: Path, job: Job) -> str | None:
    """The cgroup of the attempt's processes, without its supervisor. None: it has none."""
    started = exits.read_start(directory)
    whole = started.cgroup if started else None
    if not whole or not cgroup.is_of(whole, job.id, job.attempt):
        return None
    return f"{whole}/job" if whole.endswith(".service") else whole
