"""Which GPUs of a server are close to each other: its islands. And which CPUs are close to a GPU.

GPUs connected by NVLink, directly or through others, form an island; with NVSwitch that is all of
them. GPUs without NVLink form an island with those below the same NUMA node: the driver's
"common ancestor" says nothing about NVLink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pynvml

from carmad.core.types import GpuId

Near = Callable[[GpuId, GpuId], bool]


def islands(gpus: Sequence[GpuId]) -> dict[GpuId, str]:
    """The island of each physical GPU, numbered in the order given; "" where there is only one.

    NVML must be initialised. If the driver cannot tell, all are one island.
    """
    try:
        found = [part for part in _connected(gpus, _linked) if len(part) > 1]
        lonely = [gpu for gpu in gpus if not any(gpu in part for part in found)]
        found += _connected(lonely, _below_one_node)
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
        near = _listed(folder / "local_cpulist")
        there = _listed(sysfs / "devices/system/cpu/online")
    except (OSError, ValueError):
        return ()
    return near if set(near) < set(there) else ()


def _listed(path: Path) -> tuple[int, ...]:
    """A kernel's list: 0-15,32-47."""
    spans = [span.partition("-") for span in path.read_text().strip().split(",")]
    return tuple(n for low, _, high in spans for n in range(int(low), int(high or low) + 1))


def _connected(gpus: Sequence[GpuId], near: Near) -> list[set[GpuId]]:
    """The connected components."""
    parts = [{gpu} for gpu in gpus]
    for one, other in combinations(gpus, 2):
        first = next(part for part in parts if one in part)
        second = next(part for part in parts if other in part)
        if first is not second and near(one, other):
            first |= second
            parts.remove(second)
    return parts


def _linked(one: GpuId, other: GpuId) -> bool:
    status = pynvml.nvmlDeviceGetP2PStatus(
        _handle(one), _handle(other), pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    )
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _below_one_node(one: GpuId, other: GpuId) -> bool:
    level = pynvml.nvmlDeviceGetTopologyCommonAncestor(_handle(one), _handle(other))
    return bool(level <= pynvml.NVML_TOPOLOGY_NODE)


def _handle(gpu: GpuId) -> object:
    return pynvml.nvmlDeviceGetHandleByUUID(gpu)
