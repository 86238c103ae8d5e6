"""What a run of the tests leaves behind: the processes of its cgroup that do not end with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import PATIENCE_S, until


class Leftovers:
    """Only who may make a cgroup (v2), as root in CI, is told. Nothing of a process is read but its
    group, its parent and its name, which none can keep us waiting for."""

    def __init__(self) -> None:
        self._before = _group()
        self._group: Path | None = None
        if self._before is not None:
            group = self._before / f"carma-tests-{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir()
                _enter(group)
                self._group = group

    def named(self) -> list[str]:
        """Those that remain when all had time to end; what this process started ends with it."""
        if self._group is None:
            return []
        try:
            until(lambda: not self._left(), "the processes to end", within_s=PATIENCE_S / 10)
        except AssertionError:
            return [f"{pid} {_stat(pid)[0]}" for pid in self._left()]
        return []

    def _left(self) -> list[int]:
        assert self._group is not None
        found = []
        for procs in self._group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in procs.read_text().split()]
        return [pid for pid in found if os.getpid() not in _line_of(pid)]

    def leave(self) -> None:
        if self._group is not None and self._before is not None:
            with contextlib.suppress(OSError):
                _enter(self._before)
                self._group.rmdir()


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _group() -> Path | None:
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    roots = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    its = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return roots[0] / its[0] if roots and its else None


def _line_of(pid: int) -> Iterator[int]:
    """The process, its parent, and so on."""
    while pid:
        yield pid
        pid = _stat(pid)[1]


def _stat(pid: int) -> tuple[str, int]:
    """Its name and its parent; 0 if it has ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return "", 0
    return name.partition("(")[2], int(rest.split()[1])
