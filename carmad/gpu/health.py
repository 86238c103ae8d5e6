"""What is wrong with a GPU that works: repairs that wait, memory errors, heat. Read from NVML; what
DCGM finds is in `dcgm_health`, and what the driver tells by itself in `events`.

What the flags mean: NVIDIA, "GPU Memory Error Management".
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from carmad.core.gpus.gpu import Condition
from carmad.core.jobs.attempt import GpuId

log = logging.getLogger(__name__)

EVERY_S = 10.0  # the calls are cheap, but a second's reading needs none of them
SLOWED_FOR_S = 60.0  # a GPU that is slowed down for a moment is in order
# No threshold is published. A GPU in order has a few corrected errors a day; the driver itself
# tells of a storm of them only while it lasts.
CORRECTED_PER_HOUR = 1000
HOUR_S = 3600.0

# With any other error, the check may succeed the next time.
_ABSENT = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}

RESET = "nvidia-smi --gpu-reset"
RECOVERY_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: f"reset the GPU: {RESET}",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the machine",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end programs that use several GPUs",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: f"drain the GPU and reset it: {RESET}",
    5: "recover the IMEX domain",  # these need a driver of 2026
    6: "reset the PCI bus of the GPU",
    7: "reboot the machine",
}
# What slows a GPU down from outside. Its power limit is not among them: busy GPUs often reach it.
_SLOWDOWNS = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot: check its fans and its airflow",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "it is too hot: check its fans and its airflow",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "the machine's power supply demands it",
}


def read_recovery_action(handle: Any) -> int:
    """The driver's code for what the GPU needs; 0: nothing. Raises NVMLError."""
    asked = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    [field] = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    pynvml._nvmlCheckReturn(field.nvmlReturn)
    return int(field.value.uiVal)


class Checkup:
    """The conditions of one physical GPU, during one session with the driver.

    A check that gets no answer keeps its last verdict: silence does not mean that a condition is
    over, and one that comes back would drain a GPU that an administrator has undrained.
    """

    def __init__(self, gpu: GpuId) -> None:
        self._gpu = gpu
        self._found: dict[str, tuple[Condition, ...]] = {}  # by check
        self._due = float("-inf")
        self._never: set[str] = set()  # checks that the driver does not have
        self._slowed_since: float | None = None
        self._corrected: deque[tuple[float, int]] = deque()  # at, count; of the last hour

    def conditions(self, at: float) -> tuple[Condition, ...]:
        """As of `EVERY_S` ago at most."""
        if not 0 < self._due - at <= EVERY_S:  # also if the clock was set back
            self._due = at + EVERY_S
            self._look(at)
        return tuple(each for found in self._found.values() for each in found)

    @property
    def untold(self) -> tuple[str, ...]:
        """What the driver turned out not to tell of this GPU: `sram`, `fabric`, …"""
        return tuple(sorted(self._never))

    def _look(self, at: float) -> None:
        with contextlib.suppress(pynvml.NVMLError):  # the next reading says why
            handle = pynvml.nvmlDeviceGetHandleByUUID(self._gpu)  # a reset makes an old one stale
            for name, check in self._checks().items():
                if name in self._never:
                    continue
                try:
                    self._found[name] = tuple(check(handle, at))
                except pynvml.NVMLError as error:
                    if error.value in _ABSENT:
                        self._never.add(name)
                except Exception:
                    log.exception("GPU %s: the check of %s failed", self._gpu, name)
                    self._never.add(name)

    def _checks(self) -> dict[str, Callable[[Any, float], Iterator[Condition]]]:
        return {
            "recovery": self._recovery,
            "rows": self._rows,
            "pages": self._pages,
            "repairs": self._repairs,
            "sram": self._sram,
            "errors": self._errors,
            "clocks": self._clocks,
            "fabric": self._fabric,
        }

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
            yield _repair("a faulty memory row will be remapped")

    def _pages(self, handle: Any, at: float) -> Iterator[Condition]:
        if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle):
            yield _repair("a faulty memory page will be retired")

    def _repairs(self, handle: Any, at: float) -> Iterator[Condition]:
        if any(pynvml.nvmlDeviceGetRepairStatus(handle)):  # of memory channels, and of TPCs
            yield _repair("a faulty part will be replaced by a spare one")

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
            yield Condition("slowed", f"the GPU is slowed down: {whys[0]}")

    def _fabric(self, handle: Any, at: float) -> Iterator[Condition]:
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
        if info.healthSummary == pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:
            yield Condition("fabric", "its NVLink fabric is not healthy: see nvidia-smi -q")


def _repair(what: str) -> Condition:
    said = f"{what} when the GPU is reset: run {RESET} while it is idle"
    return Condition("repair_pending", said)
