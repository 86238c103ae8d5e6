"""Reads SMACT, SMOCC, DRAMA and more through NVML's GPM, which Hopper and newer GPUs have."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from carmad.core.jobs.attempt import GpuId
from carmad.gpu.source import PROFILED, TRAFFIC, Activity, Unit, activity_of

_METRICS = {
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "graphics_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "fp32_active": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16_active": pynvml.NVML_GPM_METRIC_FP16_UTIL,
    "pcie_tx_mib_s": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "pcie_rx_mib_s": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "nvlink_tx_mib_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    "nvlink_rx_mib_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
}
_APART_S = 0.1  # two samples must be further apart than this (nvml.h, nvmlGpmMetricsGet)


@dataclass(slots=True)
class _Probe:
    """One GPU's two sample buffers, used in turn."""

    handle: Any  # of the physical GPU, also for a MIG instance
    instance: int | None
    older: Any
    newer: Any
    taken_at: float | None = None  # monotonic, when `newer` was filled
    activity: Activity | None = None

    def take(self) -> None:
        """Fill the older buffer, swap, and compute the activity between the two."""
        if self.instance is None:
            pynvml.nvmlGpmSampleGet(self.handle, self.older)
        else:
            pynvml.nvmlGpmMigSampleGet(self.handle, self.instance, self.older)
        self.older, self.newer = self.newer, self.older
        first = self.taken_at is None
        self.taken_at = time.monotonic()
        self.activity = None if first else _between(self.older, self.newer)

    def free(self) -> None:
        for sample in (self.older, self.newer):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)


class GpmProfiler:
    """Each `read` returns the activity since the previous one."""

    name = "gpm"

    def __init__(self) -> None:
        self._probes: dict[GpuId, _Probe] = {}
        self._unsupported: dict[GpuId, str] = {}

    def open(self, units: tuple[Unit, ...]) -> None:
        self._unsupported = find_unsupported(units)
        for unit in units:
            if unit.gpu.id not in self._unsupported:
                try:
                    self._probes[unit.gpu.id] = _probe(unit)
                except pynvml.NVMLError as error:
                    self._unsupported[unit.gpu.id] = str(error)

    def read(self) -> Mapping[GpuId, Activity]:
        now = time.monotonic()
        for gpu, probe in self._probes.items():
            if probe.taken_at is not None and now - probe.taken_at <= _APART_S:
                continue
            try:
                probe.take()
                self._unsupported.pop(gpu, None)
            except pynvml.NVMLError as error:
                # The next pair of samples must not span the gap.
                probe.taken_at = probe.activity = None
                self._unsupported[gpu] = str(error)
        return {
            gpu: probe.activity for gpu, probe in self._probes.items() if probe.activity is not None
        }

    def missing(self) -> tuple[tuple[str, str], ...]:
        why = "; ".join(f"{gpu}: {reason}" for gpu, reason in self._unsupported.items())
        return tuple((what, why) for what in PROFILED) if why else ()

    def close(self) -> None:
        for probe in self._probes.values():
            probe.free()
        self._probes.clear()


def find_unsupported(units: Iterable[Unit]) -> dict[GpuId, str]:
    """The GPUs without GPM, and why. NVML must be initialised."""
    reasons = {}
    for unit in units:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(unit.physical)
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                reasons[unit.gpu.id] = f"{unit.gpu.name} has no GPM (Hopper and newer have it)"
        except pynvml.NVMLError as error:
            reasons[unit.gpu.id] = f"{unit.gpu.name} has no GPM ({error})"
    return reasons


def _probe(unit: Unit) -> _Probe:
    handle = pynvml.nvmlDeviceGetHandleByUUID(unit.physical)
    older = pynvml.nvmlGpmSampleAlloc()
    try:
        newer = pynvml.nvmlGpmSampleAlloc()
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(older)
        raise
    return _Probe(handle, unit.gpu_instance, older, newer)


def _between(older: Any, newer: Any) -> Activity:
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    query.sample1, query.sample2 = older, newer
    query.numMetrics = len(_METRICS)
    for slot, metric in zip(query.metrics, _METRICS.values(), strict=False):
        slot.metricId = metric
    pynvml.nvmlGpmMetricsGet(query)
    named = zip(_METRICS, query.metrics, strict=False)
    return activity_of({name: _value(name, metric) for name, metric in named})


def _value(name: str, metric: Any) -> float | None:
    """GPM reports percent, except for traffic, which is in MiB/s."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(metric.value):
        return None
    value = max(float(metric.value), 0.0)
    return value if name in TRAFFIC else min(value / 100, 1.0)
