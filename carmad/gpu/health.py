"""What is wrong with a GPU that works: repairs that wait, memory errors, heat. Read from NVML; what
DCGM finds is in `dcgm_health`, and what the driver tells by itself in `events`.

What the flags mean: NVIDIA, "GPU Memory Error Management".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from carmad.core.types import Condition
from carmad.gpu.driver import NEVER

EVERY_S = 10.0  # the calls are cheap, but a second's reading needs none of them
SLOWED_FOR_S = 60.0  # a GPU that is slowed down for a moment is in order
# No threshold is published. A GPU in order has a few corrected errors a day; the driver itself
# tells of a storm of them only while it lasts.
CORRECTED_PER_HOUR = 1000
HOUR_S = 3600.0

_RESET = "nvidia-smi --gpu-reset"
RECOVERY_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: f"reset the GPU: {_RESET}",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the machine",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain peer-to-peer traffic",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: f"drain the GPU and reset it: {_RESET}",
    5: "recover the IMEX domain",  # these need a driver of 2026
    6: "reset the PCI bus of the GPU",
    7: "reboot the system",
}
# What slows a GPU down from outside. Its power limit is not among them: busy GPUs often reach it.
_SLOWDOWNS = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot: see its fans and the air's way",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "it is too hot: see its fans and the air's way",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "the machine's power supply asks for it",
}


def read_recovery_action(handle: Any) -> int:
    """The driver's code for what the GPU needs; 0: nothing. Raises NVMLError."""
    asked = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    [field] = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    pynvml._nvmlCheckReturn(field.nvmlReturn)
    return int(field.value.uiVal)


class Checkup:
    """The conditions of one physical GPU, during one session with the driver."""

    def __init__(self) -> None:
        self._conditions: tuple[Condition, ...] = ()
        self._due = float("-inf")
        self._never: set[Callable[..., Any]] = set()  # the driver does not have these
        self._slowed_since: float | None = None
        self._corrected: deque[tuple[float, int]] = deque()  # at, count; of the last hour

    def conditions(self, handle: Any, at: float) -> tuple[Condition, ...]:
        """As of `EVERY_S` ago at most. `handle`: of the physical GPU."""
        if not 0 < self._due - at <= EVERY_S:  # also if the clock was set back
            self._due = at + EVERY_S
            self._conditions = tuple(self._look(handle, at))
        return self._conditions

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the driver turned out not to tell of this GPU: `sram`, `fabric`, …"""
        return tuple(sorted(check.__name__.strip("_") for check in self._never))

    def _look(self, handle: Any, at: float) -> Iterator[Condition]:
        for check in (
            self._recovery,
            self._rows,
            self._pages,
            self._repairs,
            self._sram,
            self._errors,
            self._clocks,
            self._fabric,
        ):
            if check in self._never:
                continue
            try:
                yield from check(handle, at)
            except pynvml.NVMLError as error:
                if error.value in NEVER:
                    self._never.add(check)

    def _recovery(self, handle: Any, at: float) -> Iterator[Condition]:
        if action := read_recovery_action(handle):
            todo = RECOVERY_ACTIONS.get(action, "see dmesg")
            yield Condition("recovery", f"the driver asks for a recovery: {todo}", drains=True)

    def _rows(self, handle: Any, at: float) -> Iterator[Condition]:
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            said = "a faulty memory row could not be remapped: have the GPU replaced"
            yield Condition("remapping_failed", said, drains=True)
        elif pending:
            yield _repair("a faulty memory row is remapped")

    def _pages(self, handle: Any, at: float) -> Iterator[Condition]:
        if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle):
            yield _repair("a faulty memory page is retired")

    def _repairs(self, handle: Any, at: float) -> Iterator[Condition]:
        if any(pynvml.nvmlDeviceGetRepairStatus(handle)):  # of memory channels, and of TPCs
            yield _repair("a faulty part of it is replaced by a spare one")

    def _sram(self, handle: Any, at: float) -> Iterator[Condition]:
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
        if status.bThresholdExceeded:
            said = "more uncorrectable errors of its SRAM than NVIDIA allows: have the GPU replaced"
            yield Condition("sram_errors", said, drains=True)

    def _errors(self, handle: Any, at: float) -> Iterator[Condition]:
        """Of its memory, since the driver was loaded."""
        corrected, uncorrected = (
            pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)
            for kind in (
                pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            )
        )
        if uncorrected:
            said = f"{uncorrected} uncorrectable memory errors since the driver was loaded"
            yield Condition("memory_errors", said)
        seen = self._corrected
        if seen and (corrected < seen[-1][1] or at < seen[-1][0]):
            seen.clear()  # the counter was reset, or the clock set back
        seen.append((at, corrected))
        while at - seen[0][0] > HOUR_S:
            seen.popleft()
        if (more := corrected - seen[0][1]) >= CORRECTED_PER_HOUR:
            said = f"{more} memory errors were corrected within an hour"
            yield Condition("corrected_errors", said)

    def _clocks(self, handle: Any, at: float) -> Iterator[Condition]:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        whys = [why for bit, why in _SLOWDOWNS.items() if reasons & bit]
        if not whys:
            self._slowed_since = None
            return
        since = at if self._slowed_since is None else min(self._slowed_since, at)
        self._slowed_since = since
        if at - since >= SLOWED_FOR_S:
            yield Condition("slowed", f"the GPU is slowed down, as {whys[0]}")

    def _fabric(self, handle: Any, at: float) -> Iterator[Condition]:
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
        if info.healthSummary == pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:
            yield Condition("fabric", "its NVLink fabric is not healthy: see nvidia-smi -q")


def _repair(what: str) -> Condition:
    return Condition("repair_pending", f"{what} at its next reset: {_RESET}, once it is idle")
