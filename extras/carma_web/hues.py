"""Which colour a job has where it is drawn."""

from __future__ import annotations

import threading
from collections.abc import Collection

# In `charts.css`: the first can be told apart by everybody, the others are darker and lighter.
COUNT = 21


def css(hue: int) -> str:
    return f"var(--hue-{hue})"


class Hues:
    """Of the jobs that a GPU had lately, no two have the same colour, and a job keeps its own. Once
    there are no more, the job that was not asked for longest loses its. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_gpu: dict[str, dict[int, int]] = {}  # of jobs; the last asked for is last

    def give(self, gpu: str, jobs: Collection[int]) -> dict[int, int]:
        """Of at most `COUNT` jobs on the GPU; of more, some have the same."""
        with self._lock:
            known = self._by_gpu.setdefault(gpu, {})
            known |= {job: known.pop(job) for job in jobs if job in known}
            for job in sorted(jobs):
                if job not in known:
                    known[job] = self._free(known, job, jobs)
            return {job: known[job] for job in jobs}

    def _free(self, known: dict[int, int], job: int, jobs: Collection[int]) -> int:
        """On several GPUs a job has one colour, if it is free on each."""
        elsewhere = [its[job] for its in self._by_gpu.values() if job in its]
        for hue in elsewhere + list(range(COUNT)):
            if hue not in known.values():
                return hue
        gone = next((old for old in known if old not in jobs), job)
        hue = known.get(gone, job % COUNT)
        known.pop(gone, None)
        return hue
