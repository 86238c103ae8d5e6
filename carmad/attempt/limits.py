"""What an attempt may use of the host, as files of its cgroup.

The CPUs are a quota of processor time, not a set: the kernel may spread it, and nothing has to
remember which job has which CPU. Memory is without swap: otherwise a job would not stop at its
limit, but slow the whole server down.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from carmad.core.types import Gpu, JobSpec

PERIOD_US = 100_000  # the kernel's usual one
CPU, MEMORY = "cpu", "memory"  # cgroup controllers


def controllers(systemd: bool, group: str) -> frozenset[str]:
    """Those by which jobs can be limited: in their units or, without systemd, below the delegated
    cgroup `group` ("": there is none), which is prepared for it."""
    uid = os.geteuid()
    if systemd:
        users = f"user.slice/user-{uid}.slice/user@{uid}.service" if uid else ""
        return _words(Path("/sys/fs/cgroup", users, "cgroup.controllers"))
    if not group:
        return frozenset()
    for each in (CPU, MEMORY):
        with contextlib.suppress(OSError):
            Path(group, "cgroup.subtree_control").write_text(f"+{each}")
    return _words(Path(group, "cgroup.subtree_control"))


def _words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split()) & {CPU, MEMORY}
    except OSError:
        return frozenset()


def near(spec: JobSpec, gpus: Iterable[Gpu]) -> tuple[int, ...]:
    """The CPUs on which a job with these GPUs starts: those near one of them, if it asks for CPUs
    and they are enough. None: on any, as with a GPU of which that is not known."""
    each = [gpu.cpus for gpu in gpus]
    found = set().union(*each) if all(each) else set()
    return tuple(sorted(found)) if spec.cpus is not None and len(found) >= spec.cpus else ()


def files(spec: JobSpec) -> dict[str, str]:
    """What its cgroup's files are to contain."""
    found = {}
    if spec.cpus is not None:
        found["cpu.max"] = f"{spec.cpus * PERIOD_US} {PERIOD_US}"
    if spec.host_memory_mib is not None:
        found |= {"memory.max": str(spec.host_memory_mib << 20), "memory.swap.max": "0"}
    return found
