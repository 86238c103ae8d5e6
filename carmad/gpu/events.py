"""Waits for the driver's events (Xids and others) in a thread and turns them into `Health`.

What Xids mean: NVIDIA, "Analyzing Xid Errors with the Xid Catalog".
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import pynvml

from carmad import beats
from carmad.gpu.source import Health, Unit


@dataclass(frozen=True, slots=True)
class Xid:
    message: str
    drain: bool


def describe_xid(number: int) -> Xid:
    """An Xid that is not in the table gets a note, but never drains a GPU."""
    what, drain = _TABLE.get(number, ("not known to CARMA; see NVIDIA's Xid catalog", False))
    return Xid(f"Xid {number}: {what}", drain)


_RESET = "the GPU must be reset: nvidia-smi --gpu-reset"

_TABLE: dict[int, tuple[str, bool]] = {
    # The application's own fault: it must restart, the GPU is fine.
    13: ("a program made the graphics engine fail (an illegal address or instruction)", False),
    31: ("a program accessed memory it does not own (MMU fault)", False),
    32: ("a program's command stream was corrupt", False),
    39: ("a copy engine failed under a program", False),
    40: ("a copy engine failed under a program", False),
    41: ("a copy engine failed under a program", False),
    69: ("a program made the graphics engine fail (class error)", False),
    94: ("a memory error was contained; only the program it hit must restart", False),
    # Consequences, not causes. 45 follows every kill of a running program, including CARMA's.
    43: ("a program's fault stopped its GPU work; the GPU is fine", False),
    45: ("a program's GPU work was torn down, as after a kill; the GPU is fine", False),
    # Housekeeping.
    63: ("a faulty memory row was remapped; it takes effect at the next reset", False),
    92: ("many corrected memory errors", False),
    # The GPU itself.
    46: (f"the GPU stopped processing; {_RESET}", True),
    48: (f"an uncorrectable (double-bit) memory error; {_RESET}, or reboot", True),
    62: (f"the GPU's power controller halted; {_RESET}", True),
    64: (f"a faulty memory row could not be remapped; {_RESET}", True),
    74: (f"an NVLink failed; check the link, then {_RESET}, or reboot", True),
    79: ("the GPU has fallen off the bus; reboot the machine", True),
    95: (f"a memory error was not contained and may have hit any program; {_RESET}", True),
    109: (f"a context switch timed out; {_RESET}", True),
    119: (f"the GPU's system processor (GSP) does not answer; {_RESET}", True),
    120: (f"the GPU's system processor (GSP) failed; {_RESET}", True),
    140: (f"an unrecovered memory error; {_RESET}", True),
    143: (f"the GPU failed to initialise; {_RESET}", True),
}


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
        self._thread = beats.thread("nvml-events", _LATE_S, self._listen)
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
            known = describe_xid(event.eventData)
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
