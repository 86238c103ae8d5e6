"""A session with NVIDIA's driver: opening it, listing GPUs, which of them are near each other, and
its errors in words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from carmad import beats
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.source import Unit
from carmad.threads import Threads

# -- which GPUs are close to each other: GPUs connected by NVLink, directly or through others, form
# an island; with NVSwitch that is all of them. GPUs without NVLink form an island with those below
# the same NUMA node: the driver's "common ancestor" says nothing about NVLink

Near = Callable[[GpuId, GpuId], bool]


def islands(gpus: Sequence[GpuId]) -> dict[GpuId, str]:
    """The island of each physical GPU, numbered in the order given; "" where there is only one.

    NVML must be initialised. If the driver cannot tell, all are one island.
    """
    try:
        found = [part for part in _components(gpus, _have_link) if len(part) > 1]
        lonely = [gpu for gpu in gpus if not any(gpu in part for part in found)]
        found += _components(lonely, _below_one_node)
    except pynvml.NVMLError:
        found = []
    if len(found) < 2:
        return dict.fromkeys(gpus, "")
    found.sort(key=lambda part: min(gpus.index(gpu) for gpu in part))
    return {gpu: str(next(n for n, part in enumerate(found) if gpu in part)) for gpu in gpus}


def cpus_near(domain: int, bus: int, device: int, sysfs: Path = Path("/sys")) -> tuple[int, ...]:
    """The CPUs on the NUMA node of a PCI device; none if all are, or the kernel does not tell."""
    folder = sysfs / "bus/pci/devices" / f"{domain:04x}:{bus:02x}:{device:02x}.0"
    try:
        near = _numbers(folder / "local_cpulist")
        there = _numbers(sysfs / "devices/system/cpu/online")
    except (OSError, ValueError):
        return ()
    return near if set(near) < set(there) else ()


def _numbers(path: Path) -> tuple[int, ...]:
    """A kernel's list: 0-15,32-47."""
    spans = [span.partition("-") for span in path.read_text().strip().split(",")]
    return tuple(n for low, _, high in spans for n in range(int(low), int(high or low) + 1))


def _components(gpus: Sequence[GpuId], near: Near) -> list[set[GpuId]]:
    """The connected components."""
    parts = [{gpu} for gpu in gpus]
    for one, other in combinations(gpus, 2):
        first = next(part for part in parts if one in part)
        second = next(part for part in parts if other in part)
        if first is not second and near(one, other):
            first |= second
            parts.remove(second)
    return parts


def _have_link(one: GpuId, other: GpuId) -> bool:
    status = pynvml.nvmlDeviceGetP2PStatus(
        _handle_of(one), _handle_of(other), pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    )
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _below_one_node(one: GpuId, other: GpuId) -> bool:
    level = pynvml.nvmlDeviceGetTopologyCommonAncestor(_handle_of(one), _handle_of(other))
    return bool(level <= pynvml.NVML_TOPOLOGY_NODE)


def _handle_of(gpu: GpuId) -> object:
    return pynvml.nvmlDeviceGetHandleByUUID(gpu)


# -- calls, each GPU's in a thread of its own: any of them may hang, and one that does must not keep
# the others from being read

T = TypeVar("T")

ANSWER_WITHIN_S = 2.0
LANE_LATE_S = 10.0  # a driver without persistence takes seconds to wake its GPUs


@dataclass(frozen=True, slots=True)
class _Call:
    kind: str
    answer: Future[Any]


class Lanes:
    """Used by one thread at a time. A lane that hangs is not asked until it has answered."""

    def __init__(self) -> None:
        self._threads: dict[str, Threads] = {}
        self._under_way: dict[str, _Call] = {}

    def ask(self, kind: str, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The answers by lane: those that come in time, and late ones to the same kind of call.
        Raises what a call raises."""
        begun = []
        for lane, call in calls.items():
            earlier = self._under_way.get(lane)
            if earlier is None or (earlier.answer.done() and earlier.kind != kind):
                self._under_way[lane] = _Call(kind, self._thread(lane).submit(call))
                begun.append(self._under_way[lane].answer)
        wait(begun, ANSWER_WITHIN_S)
        return {
            lane: self._under_way.pop(lane).answer.result()
            for lane in calls
            if self._under_way[lane].answer.done() and self._under_way[lane].kind == kind
        }

    def hangs(self, lane: str) -> str:
        """The driver's function that it hangs in; "": it does not."""
        earlier = self._under_way.get(lane)
        if earlier is None or earlier.answer.done():
            return ""
        return beats.call_of(_thread_name(lane)) or "a question"

    @property
    def any_hangs(self) -> bool:
        return any(not call.answer.done() for call in self._under_way.values())

    def close(self) -> None:
        """A thread that hangs ends when its call returns, if it does."""
        for lane, threads in self._threads.items():
            threads.shutdown(wait=not self.hangs(lane))
        self._threads.clear()
        self._under_way.clear()

    def _thread(self, lane: str) -> Threads:
        if lane not in self._threads:
            self._threads[lane] = Threads(1, _thread_name(lane), LANE_LATE_S)
        return self._threads[lane]


def _thread_name(lane: str) -> str:
    return f"nvml-{lane}"


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
    why_none: str = ""  # it has no units


NO_INSTANCE = "MIG is on and it has no instance"
NO_MEMORY = (
    "its memory cannot be read: the driver answers Not Supported, and does not say that the GPU"
    " uses the host's memory (addressing mode ATS)"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a GPU, in bytes. What is reserved is neither used nor free."""

    total: int
    reserved: int
    used: int
    free: int


def read_memory(handle: Any) -> Memory:
    """The memory that a GPU's processes may use: the host's, if the GPU has none of its own (GB10).
    Raises NVMLError."""
    try:
        its = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED or not _shares_host_memory(handle):
            raise
        host = psutil.virtual_memory()
        return Memory(host.total, 0, host.total - host.available, host.available)
    return Memory(its.total, its.reserved, its.used, its.free)


def _shares_host_memory(handle: Any) -> bool:
    """Whether the GPU addresses the host's memory as its own. Some that do, such as GH200, also
    have memory of their own, which the driver tells."""
    try:
        mode = pynvml.nvmlDeviceGetAddressingMode(handle)
    except (AttributeError, pynvml.NVMLError):  # the binding, or the driver, is older
        return False
    return bool(mode == pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS)


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


IN_KERNEL = Path("/proc/driver/nvidia/gpus")  # a folder for each


def units_of(boards: Sequence[Board]) -> tuple[Unit, ...]:
    """All units that take jobs, numbered in the order given, which is the PCI bus order.

    CUDA counts the same way if these are all GPUs that the kernel's driver has, and none is divided
    by MIG. If one is missing, a program may find the others under lower numbers.
    """
    units = [unit for board in boards for unit in board.units]
    whole = all(len(b.units) == 1 and not b.units[0].gpu.is_mig for b in boards)
    certain = whole and len(boards) == _count_in_kernel()
    return tuple(
        replace(unit, gpu=replace(unit.gpu, index=index, cuda_index=index if certain else None))
        for index, unit in enumerate(units)
    )


def _count_in_kernel() -> int | None:
    """How many GPUs the kernel's driver has, working or not; None if it does not say, as in WSL."""
    try:
        return sum(1 for _ in IN_KERNEL.iterdir())
    except OSError:
        return None


def _board(index: int, handle: Any) -> Board:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    where = pci.domain, pci.bus, pci.device
    cpus = cpus_near(*where)
    found, why_none = _units_on(handle)
    units = tuple(replace(unit, gpu=replace(unit.gpu, cpus=cpus)) for unit in found)
    return Board(GpuId(pynvml.nvmlDeviceGetUUID(handle)), index, where, units, why_none)


def _units_on(handle: Any) -> tuple[list[Unit], str]:
    """Its units, and why there is none."""
    parent = GpuId(pynvml.nvmlDeviceGetUUID(handle))
    try:
        mig_on = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError as error:
        if error.value not in NEVER:
            raise
        mig_on = False
    if not mig_on:
        try:
            return [Unit(replace(_gpu(handle, None), guarantees=limits_memory(handle)))], ""
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise
            return [], NO_MEMORY  # and it will not be better: nobody needs to wait for it
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
    return units, "" if units else NO_INSTANCE


def _gpu(handle: Any, parent: GpuId | None) -> Gpu:
    memory = read_memory(handle)
    return Gpu(
        id=GpuId(pynvml.nvmlDeviceGetUUID(handle)),
        index=0,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_mib=(memory.total - memory.reserved) // MIB,
        parent=parent,
    )


def limits_memory(handle: Any) -> bool:
    """Whether this process can limit the memory that a cgroup's processes have on the GPU, and
    guarantee it to them: root can, from driver R615 on, but not on a MIG instance."""
    try:
        its = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup")
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, its)
    except AttributeError:  # the binding is older
        return False
    except pynvml.NVMLError as error:
        # That this cgroup has no limits, or may have none, says nothing about others.
        if error.value in NEVER - {pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            return False
    return os.geteuid() == 0


def _no_driver(error: Any) -> CarmaError:
    return CarmaError(
        in_words(error),
        "nvidia-smi must work on this machine first; to try CARMA without a GPU, "
        "use the emulated source",
    )


def in_words(error: Any) -> str:
    return FAULTS.get(error.value) or _VITAL_FAULTS.get(error.value) or f"NVML: {error}"
