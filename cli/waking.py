"""Whether a suspended job at this terminal is used again: somebody types, or its processes compute.

An idle Jupyter kernel takes 0.2 ms of processor time a second, and the shortest cell 6 ms (measured
with ipykernel 7). Whatever the job runs, it is told by that; a shell is told by its terminal, as
`w` does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

USED_S = 0.003  # of processor time between two looks, a second apart


class Use:
    """From now on. `child`: the job's first process."""

    def __init__(self, child: int) -> None:
        self._child = child
        self._typed_at = _typed_at()
        self._spent_s = self._spent()

    def is_new(self) -> bool:
        """Whether the job was used since the last call."""
        typed_at, spent_s = _typed_at(), self._spent()
        used = typed_at > self._typed_at or spent_s - self._spent_s > USED_S
        self._typed_at, self._spent_s = typed_at, spent_s
        return used

    def _spent(self) -> float:
        """Seconds of processor time of its processes that live."""
        total, left = 0, [self._child]
        while left:
            pid = left.pop()
            for thread in _list(f"/proc/{pid}/task"):
                at = f"/proc/{pid}/task/{thread}"
                total += int((_read(f"{at}/schedstat").split() or (b"0",))[0])
                left += map(int, _read(f"{at}/children").split())
        return total / 1e9


def _typed_at() -> float:
    """When somebody last typed at this terminal, to within 8 s; 0: it is none."""
    with suppress(OSError, ValueError):
        if os.isatty(0):
            return os.stat(0).st_atime
    return 0.0


def _list(path: str) -> list[str]:
    try:
        return [entry.name for entry in Path(path).iterdir()]
    except OSError:  # it has just ended
        return []


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read()
    except OSError:
        return b""
