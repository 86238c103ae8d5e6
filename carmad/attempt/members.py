"""A running attempt's processes as a whole: which they are, whether they run, and how much of the
host's memory they may have. Everything may be repeated."""

from __future__ import annotations

import os
from pathlib import Path

from carmad.attempt import cgroup, exits, supervisor
from carmad.attempt.proc import read_file, running, with_descendants, write_file
from carmad.attempt.starting import Launch
from carmad.core.types import Job

MIB = 1 << 20
# Of memory.stat: what the kernel can take back without ending anybody.
_RECLAIMABLE = (b"active_file", b"inactive_file", b"slab_reclaimable")


def pids(directory: Path, job: Job) -> frozenset[int]:
    """Those of the attempt in this directory, without its supervisor."""
    if group := find(directory, job):
        return frozenset(cgroup.members(group))
    started = exits.read_start(directory)
    if started is None:
        return frozenset()
    roots = [(started.pid, started.start_ticks)]
    if started.follows and (follow := Launch(read_file(str(directory / supervisor.LAUNCH))).follow):
        roots.append((follow[0], follow[1]))
    alive = {pid: start for pid, start in roots if running(pid, start)}
    return frozenset(with_descendants(alive)) - {started.pid}


def find(directory: Path, job: Job) -> str | None:
    """The cgroup of the attempt's processes, without its supervisor. None: it has none."""
    started = exits.read_start(directory)
    whole = started.cgroup if started else None
    if not whole or not cgroup.is_of(whole, job.id, job.attempt):
        return None
    return f"{whole}/job" if whole.endswith(".service") else whole


def freeze(directory: Path, job: Job, frozen: bool) -> bool:
    """Let none of its processes run; or all again. False: it has no cgroup, so nothing is done."""
    group = find(directory, job)
    return group is not None and _write(f"{group}/cgroup.freeze", b"%d" % frozen)


def allow(directory: Path, job: Job, extra_mib: int) -> bool:
    """Let it have so much of the host's memory beyond its own limit, if it has one. False: it uses
    more than that now, and the kernel would end it."""
    group, limit = find(directory, job), job.spec.host_memory_mib
    if group is None or limit is None or not os.path.exists(f"{group}/memory.max"):  # noqa: PTH110
        return True
    most = (limit + extra_mib) * MIB
    return _static_bytes(group) <= most and _write(f"{group}/memory.max", b"%d" % most)


def _static_bytes(group: str) -> int:
    """Bytes of its memory that the kernel cannot take back."""
    try:
        words = read_file(f"{group}/memory.stat").split()
        stat = dict(zip(words[::2], words[1::2], strict=False))
        reclaimable = sum(int(stat.get(name, 0)) for name in _RECLAIMABLE)
        return int(read_file(f"{group}/memory.current")) - reclaimable
    except OSError:  # it has just ended
        return 0


def _write(path: str, data: bytes) -> bool:
    try:
        write_file(path, data)
    except OSError:
        return False
    return True
