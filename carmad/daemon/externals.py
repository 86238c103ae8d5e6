"""Notices processes that use GPUs outside of the queue, for the record of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import psutil

from carmad.core.types import GpuId, GpuSample, ProcessUse
from carmad.store.values import External

MOST_LETTERS = 256  # of a command
MOST = 1000  # that are kept while nothing can be written


class Externals:
    """Filled by the monitor's thread, emptied by housekeeping's. Small ones, such as a desktop's,
    are left out: those that never held more than `least_mib` on a GPU."""

    def __init__(self, least_mib: int) -> None:
        self._least_mib = least_mib
        self._lock = threading.Lock()
        self._present: dict[tuple[GpuId, int], External] = {}
        self._gone: deque[External] = deque(maxlen=MOST)

    def add(self, samples: Iterable[GpuSample]) -> None:
        """A reading of all GPUs."""
        present: dict[tuple[GpuId, int], External] = {}
        for sample in samples:
            for use in sample.processes:
                if use.job is None:
                    key = sample.gpu, use.pid
                    known = self._present.get(key) or _noticed(sample, use)
                    present[key] = replace(
                        known, seen_to=sample.at, peak_mib=_more(known.peak_mib, use.memory_mib)
                    )
        with self._lock:
            self._gone += [one for key, one in self._present.items() if key not in present]
            self._present = present

    def take(self) -> list[External]:
        """Those seen since the last call; what is still there will come again."""
        with self._lock:
            found = [*self._gone, *self._present.values()]
            self._gone.clear()
        return [one for one in found if one.peak_mib is None or one.peak_mib > self._least_mib]


def _noticed(sample: GpuSample, use: ProcessUse) -> External:
    try:
        started_at = psutil.Process(use.pid).create_time()
    except psutil.Error:  # already gone, or out of our sight
        started_at = sample.at
    command = use.command[:MOST_LETTERS]
    return External(
        sample.gpu, use.pid, started_at, use.user, command, sample.at, sample.at, use.memory_mib
    )


def _more(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)
