"""Waits for the driver's events (Xids and others) in a thread and turns them into `Health`."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from typing import Any

import pynvml

from carmad import beats
from carmad.gpu import xid
from carmad.gpu.profiler import Unit
from carmad.gpu.source import Health

_WAIT_MS = 200  # also how long `stop` may take
_RETRY_S = 1.0
_LATE_S = 10.0

_NO_INSTANCE = 0xFFFFFFFF
_XID_RECOVERY_ACTION = 154

_OTHER_EVENTS = {
    pynvml.nvmlEventTypeDoubleBitEccError: "an uncorrectable (double-bit) memory error",
    pynvml.nvmlEventTypeDramRetirementFailure: "a faulty memory page could not be retired",
    pynvml.nvmlEventTypeFatalPoisonError: "a fatal memory error",
    pynvml.nvmlEventTypeGpuUnavailableError: "the GPU has become unavailable",
}
_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeGpuRecoveryAction
    | sum(_OTHER_EVENTS)
)
_RECOVERY_ACTIONS = {
    0: "none is needed any more",
    1: "reset the GPU: nvidia-smi --gpu-reset",
    2: "reboot the machine",
    3: "drain peer-to-peer traffic",
    4: "drain the GPU and reset it: nvidia-smi --gpu-reset",
}


class EventWatcher:
    """Lives within one NVML session: `stop` it before NVML is shut down."""

    def __init__(self, units: tuple[Unit, ...], news: queue.SimpleQueue[Health]) -> None:
        """NVML must be initialised. `why_not` says why there are no events to wait for."""
        self._news = news
        self._units: dict[int, list[Unit]] = {}  # by the GPU's handle: a lost GPU has no UUID
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self.why_not: str | None = "no GPU"
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self.why_not = str(error)
            return
        for unit in units:
            try:
                self._register(unit)
            except pynvml.NVMLError as error:
                self.why_not = f"{unit.physical}: {error}"
        if self._units:
            self.why_not = None
            self._thread.start()
        else:
            pynvml.nvmlEventSetFree(self._events)

    def stop(self) -> None:
        if not self._units:
            return
        self._stopping.set()
        self._thread.join()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)
        self._units.clear()

    def _register(self, unit: Unit) -> None:
        handle = pynvml.nvmlDeviceGetHandleByUUID(unit.physical)
        if _address(handle) not in self._units:
            # The driver refuses the whole mask if a single bit is unsupported.
            mask = _WANTED & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            pynvml.nvmlDeviceRegisterEvents(handle, mask, self._events)
        self._units.setdefault(_address(handle), []).append(unit)

    def _run(self) -> None:
        with beats.beating("nvml-events", _LATE_S):
            self._listen()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            beats.at("the driver's events")
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except pynvml.NVMLError as error:
                # With a lost GPU every wait fails at once: do not spin.
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._stopping.wait(_RETRY_S)
                continue
            self._tell(event)

    def _tell(self, event: Any) -> None:
        message, drain = _meaning(event)
        instance = event.gpuInstanceId
        for unit in self._units.get(_address(event.device), ()):
            # A reset affects every instance of the GPU.
            if drain or instance == _NO_INSTANCE or unit.gpu_instance in (None, instance):
                self._news.put(Health(unit.gpu.id, time.time(), message, drain))


def _meaning(event: Any) -> tuple[str, bool]:
    if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
        if event.eventData != _XID_RECOVERY_ACTION:
            known = xid.describe(event.eventData)
            return known.message, known.drain
    elif event.eventType != pynvml.nvmlEventTypeGpuRecoveryAction:
        return _OTHER_EVENTS.get(event.eventType, f"event {event.eventType:#x}"), True
    action = _recovery_action(event.device)
    wanted = _RECOVERY_ACTIONS.get(action, "see dmesg")
    return f"the driver's recovery action has changed: {wanted}", action != 0


def _recovery_action(handle: Any) -> int:
    """0 if none is needed; -1 if the driver does not say."""
    with contextlib.suppress(pynvml.NVMLError):
        [field] = pynvml.nvmlDeviceGetFieldValues(
            handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        )
        if field.nvmlReturn == pynvml.NVML_SUCCESS:
            return int(field.value.uiVal)
    return -1


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
