"""Averages a GPU's readings over half a minute, so that history costs little disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from carmad.core.types import GpuId, GpuSample

AVERAGED = ("sm_active", "sm_occupancy", "dram_active", "utilization", "power_w")


class Rollup:
    """Filled by the monitor's thread, emptied by housekeeping's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[GpuId, list[GpuSample]] = {}

    def add(self, samples: Iterable[GpuSample]) -> None:
        with self._lock:
            for sample in samples:
                self._readings.setdefault(sample.gpu, []).append(sample)

    def take(self) -> list[GpuSample]:
        """One averaged sample per GPU for the time since the last call."""
        with self._lock:
            readings, self._readings = self._readings, {}
        return [averaged(samples) for samples in readings.values()]


def averaged(samples: list[GpuSample]) -> GpuSample:
    """The last sample, with its rates averaged over all; counters and processes are the last's."""
    means: dict[str, float | None] = {}
    for metric in AVERAGED:
        values = [v for s in samples if (v := getattr(s, metric)) is not None]
        means[metric] = sum(values) / len(values) if values else None
    return replace(samples[-1], **means)  # type: ignore[arg-type]
