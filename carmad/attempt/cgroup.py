"""The cgroups of attempts.

Part of the supervisor's program, so imports are few (see there).
"""
# ruff: noqa: PTH102, PTH110, PTH119

from __future__ import annotations

import os

from carmad.attempt.process_tree import read_file, tell_kernel


def own_cgroup() -> str | None:
    """The path of our cgroup (v2)."""
    for line in read_file("/proc/self/cgroup").decode().splitlines():
        if line.startswith("0::"):
            for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                if os.path.exists(f"{mount}{line[3:]}/cgroup.procs"):
                    return mount + line[3:]
    return None


def job_cgroup(unit: str | None) -> str | None:
    """A cgroup for the job alone, below our unit's. None if we have no unit of our own.

    Killing the unit's own cgroup would kill us too, before we could record how the job ended.
    """
    if unit is None or not os.path.basename(unit).startswith("carma-job-"):
        return None
    return _made(f"{unit}/job")


def limited_cgroup(path: str, limits: dict[str, bytes]) -> str | None:
    """A new cgroup for the job alone; `limits`: contents of its files. None if there can be none:
    then the job runs without."""
    made = _made(path)
    for name, value in limits.items() if made else ():
        tell_kernel(f"{path}/{name}", value)
    return made


def _made(path: str) -> str | None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError:
        return None
    return path


def memory_events(cgroup: str | None) -> dict[bytes, int] | None:
    """What has happened in this cgroup and those below it, by the kernel's name for it. None:
    nobody counts."""
    if cgroup is None:
        return None
    try:
        words = read_file(f"{cgroup}/memory.events").split()
    except OSError:
        return None
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)}


def oom_kills(cgroup: str | None) -> int | None:
    """How often the kernel's OOM killer has struck in this cgroup and those below it."""
    events = memory_events(cgroup)
    return events.get(b"oom_kill") if events else None
