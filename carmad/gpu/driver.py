"""A session with NVIDIA's driver: opening it, listing GPUs, and its errors in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from carmad.core.types import Gpu, GpuId
from carmad.errors import CarmaError
from carmad.gpu.profiler import Unit
from carmad.gpu.topology import cpus_near

MIB = 1024 * 1024

# This GPU will never report the reading: asked only once.
NEVER = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # the driver is older than the binding
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # some calls return this for a MIG instance
    pynvml.NVML_ERROR_NO_PERMISSION,
}

# If any reading returns one of these, the GPU takes no jobs.
FAULTS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it has fallen off the bus; reboot the machine",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset: nvidia-smi --gpu-reset",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the driver no longer finds the GPU",
    pynvml.NVML_ERROR_IRQ_ISSUE: "the GPU's interrupts do not arrive; see dmesg",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVIDIA's libnvidia-ml.so.1 is not installed",
    # A process keeps the library that it has loaded.
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was upgraded: load the new kernel module, then restart carmad"
    ),
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver was restarted",
}

# Faults only for queries of memory, processes or the GPU itself.
_VITAL_FAULTS = {
    pynvml.NVML_ERROR_UNKNOWN: "the driver reports an unknown error for the GPU; see dmesg",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the operating system denies access to the GPU: see /dev/nvidia* and the cgroup's devices"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to open the GPU: see /dev/nvidia*",
    pynvml.NVML_ERROR_NOT_FOUND: "the driver no longer knows the GPU or MIG instance",
}


@dataclass(frozen=True, slots=True)
class Board:
    """A physical GPU and its units that take jobs: the GPU itself, or its MIG instances."""

    id: GpuId
    index: int  # NVML's
    bus: tuple[int, int, int]  # PCI domain, bus, device
    units: tuple[Unit, ...]


def connect() -> None:
    """Initialise NVML. Raises CarmaError with a hint for administrators."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _no_driver(error) from error


def disconnect() -> None:
    # The driver may be gone already.
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def count_boards() -> int:
    """How many physical GPUs there are. NVML must be initialised. Raises CarmaError."""
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise _no_driver(error) from error


def open_board(index: int) -> Board | str:
    """The GPU with this number of NVML's, or why it cannot be opened."""
    try:
        return _board(index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return in_words(error)


def units_of(boards: Iterable[Board]) -> tuple[Unit, ...]:
    """All units that take jobs, numbered in the order given."""
    units = [unit for board in boards for unit in board.units]
    return tuple(
        replace(unit, gpu=replace(unit.gpu, index=index)) for index, unit in enumerate(units)
    )


def _board(index: int, handle: Any) -> Board:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    where = pci.domain, pci.bus, pci.device
    cpus = cpus_near(*where)
    units = (replace(unit, gpu=replace(unit.gpu, cpus=cpus)) for unit in _units_on(handle))
    return Board(GpuId(pynvml.nvmlDeviceGetUUID(handle)), index, where, tuple(units))


def _units_on(handle: Any) -> list[Unit]:
    parent = GpuId(pynvml.nvmlDeviceGetUUID(handle))
    try:
        mig_on = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError as error:
        if error.value not in NEVER:
            raise
        mig_on = False
    if not mig_on:
        return [Unit(_gpu(handle, None))]
    units = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:
                raise
            continue  # slots may have gaps
        units.append(
            Unit(
                _gpu(instance, parent),
                pynvml.nvmlDeviceGetGpuInstanceId(instance),
                pynvml.nvmlDeviceGetComputeInstanceId(instance),
            )
        )
    return units


def _gpu(handle: Any, parent: GpuId | None) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return Gpu(
        id=GpuId(pynvml.nvmlDeviceGetUUID(handle)),
        index=0,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_mib=(memory.total - memory.reserved) // MIB,
        parent=parent,
    )


def _no_driver(error: Any) -> CarmaError:
    return CarmaError(
        in_words(error),
        "nvidia-smi must work on this machine first; to try CARMA without a GPU, "
        "use the emulated source",
    )


def in_words(error: Any) -> str:
    return FAULTS.get(error.value) or _VITAL_FAULTS.get(error.value) or f"NVML: {error}"
