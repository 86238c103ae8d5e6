"""Waits for the driver's events (Xids and others) in a thread and turns them into `Health`.

What Xids mean (`xids.csv`): NVIDIA, "Analyzing Xid Errors with the Xid Catalog".
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from carmad import beats
from carmad.gpu.driver import NEVER
from carmad.gpu.health import RECOVERY_ACTIONS, read_recovery_action
from carmad.gpu.source import Health, Unit

log = logging.getLogger(__name__)


TABLE = Path(__file__).with_name("xids.csv")


@cache
def _xids() -> dict[int, tuple[str, bool]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {int(row["xid"]): (row["what"], row["drains"] == "yes") for row in rows}


def describe_xid(number: int) -> tuple[str, bool]:
    """What it means, and whether the GPU should take no further job. One that is not in the table
    gets a note, but never drains a GPU."""
    unknown = "not known to CARMA; see NVIDIA's Xid catalog", False
    what, drains = _xids().get(number, unknown)
    return f"Xid {number}: {what}", drains


_WAIT_MS = 200  # also how long `stop` may take
_RETRY_S = 1.0
_LATE_S = 10.0

_NO_INSTANCE = 0xFFFFFFFF
_XID_RECOVERY_ACTION = 154

_OTHER_EVENTS = {
    pynvml.nvmlEventTypeDoubleBitEccError: ("an uncorrectable (double-bit) memory error", True),
    pynvml.nvmlEventTypeDramRetirementFailure: ("a faulty memory page could not be retired", True),
    pynvml.nvmlEventTypeFatalPoisonError: ("a fatal memory error", True),
    pynvml.nvmlEventTypeGpuUnavailableError: ("the GPU has become unavailable", True),
    pynvml.nvmlEventTypeSingleBitEccErrorStorm: ("very many corrected memory errors", False),
    pynvml.nvmlEventTypeDramRetirementEvent: ("a faulty memory page is to be retired", False),
    pynvml.nvmlEventTypeNonFatalPoisonError: ("a memory error ended a program", False),
}
_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeGpuRecoveryAction
    | sum(_OTHER_EVENTS)
)


class EventWatcher:
    """Lives within one NVML session: `stop` it before NVML is shut down."""

    def __init__(self, units: tuple[Unit, ...], news: queue.SimpleQueue[Health]) -> None:
        """NVML must be initialised. `why_not` says why there are no events to wait for."""
        self._news = news
        self._units: dict[int, list[Unit]] = {}  # by the GPU's handle: a lost GPU has no UUID
        self._stopping = threading.Event()
        self._thread = beats.thread("nvml-events", _LATE_S, self._listen)
        self.why_not: str | None = "no GPU"
        self._more = OperationalEvents(units)
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
            self._more.close()
            return
        self._stopping.set()
        self._thread.join()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)
        self._more.close()
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
            else:
                its = self._units.get(_address(event.device), ())
                self._tell(its, event.gpuInstanceId, *_meaning(event))
            try:
                for its, instance, message, drain in self._more.read():
                    self._tell(its, instance, message, drain)
            except Exception:
                log.exception("cannot read operational events: carmad ignores them from now on")
                self._more.close()

    def _tell(self, units: Iterable[Unit], instance: int, message: str, drain: bool) -> None:
        for unit in units:
            # A reset affects every instance of the GPU.
            if drain or instance == _NO_INSTANCE or unit.gpu_instance in (None, instance):
                self._news.put(Health(unit.gpu.id, time.time(), message, drain))


def _meaning(event: Any) -> tuple[str, bool]:
    if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
        if event.eventData != _XID_RECOVERY_ACTION:
            return describe_xid(event.eventData)
    elif event.eventType != pynvml.nvmlEventTypeGpuRecoveryAction:
        return _OTHER_EVENTS.get(event.eventType, (f"event {event.eventType:#x}", False))
    try:
        action = read_recovery_action(event.device)
    except pynvml.NVMLError:  # the check of its health will ask again
        return "the driver's recovery action has changed: see dmesg", False
    wanted = RECOVERY_ACTIONS.get(action, "see dmesg") if action else "none is needed any more"
    return f"the driver's recovery action has changed: {wanted}", action != 0


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# -- events that are no Xids. NVIDIA calls them GPU Operational Events: a preview, from R615 on.
# They have a set of their own, so that whatever may change about them, Xids are heard as ever


MOST_AT_ONCE = 64
MOST_CONTEXTS = 64


class OperationalEvents:
    """Of those that need an action. One that is an Xid, too, is left to the Xid."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units: dict[str, list[Unit]] = {}  # by the GPU's UUID
        self._events: Any = None
        for unit in units:
            self._units.setdefault(unit.physical, []).append(unit)
        registered = False
        with contextlib.suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for gpu in self._units:
                with contextlib.suppress(pynvml.NVMLError):  # an older driver has none
                    least = pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_RECOVERABLE
                    wanted = pynvml.c_nvmlGpuOperationalEventConfig_v1_t(gpu, minSeverity=least)
                    pynvml.nvmlEventSetRegisterGpuOperationalEvents_v1(self._events, wanted)
                    registered = True
        if not registered:
            self.close()

    def read(self) -> Iterator[tuple[list[Unit], int, str, bool]]:
        """Those since the last call, but not too many: units of the GPU, its MIG instance, what
        happened, and whether it should take no further jobs. Does not block."""
        for _ in range(MOST_AT_ONCE):
            if self._events is None:
                return
            event = pynvml.c_nvmlEventSetWait_v3_t(timeoutMs=0)
            try:
                pynvml.nvmlEventSetWait_v3(self._events, event)
            except pynvml.NVMLError as error:
                if error.value in NEVER:
                    self.close()
                return
            simulated = event.groupAttributes & pynvml.NVML_OPERATIONAL_EVENT_GROUP_ATTR_SIMULATED
            if not simulated and not self._is_xid():
                fatal = event.severity >= pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_FATAL
                what = f"{'a fatal' if fatal else 'an'} error in {event.sourceModule}"
                code = f"category {event.categoryId}, code {event.moduleEventCode}"
                message = f"{what} ({code}): see nvidia-smi event-log"
                yield self._units.get(event.uuid, []), event.gpuInstanceId, message, fatal

    def _is_xid(self) -> bool:
        """Whether the event that was read last is an Xid, too. If in doubt, it is not: told twice
        is better than not at all."""
        found = pynvml.c_nvmlEventSetGetContextCount_v1_t()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetGetContextCount_v1(self._events, found)
            for index in range(min(found.count, MOST_CONTEXTS)):
                context = pynvml.c_nvmlEventSetGetContextInfo_v1_t(index=index)
                pynvml.nvmlEventSetGetContextInfo_v1(self._events, context)
                kind = context.nvmlGpuOperationalEventContextType
                if kind == pynvml.NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID:
                    return True
        return False

    def close(self) -> None:
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
        self._events = None
