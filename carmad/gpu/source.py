"""The interface of telemetry sources, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from carmad.core.types import Gpu, GpuId, GpuSample

# NVML's utilisation counts the time in which any kernel runs, SMACT the SMs that have work; how one
# follows from the other is fitted in `carmad.sim.catalogue`.
SM_EXPONENT = 1.5
MOST_DRAM = 0.8  # DRAM activity that is reached in practice


def utilization(sm_active: float, dram_active: float) -> tuple[float, float]:
    """NVML's utilisation of a GPU and its memory for such SMACT and DRAMA, all 0–1."""
    return sm_active ** (1 / SM_EXPONENT), min(1.0, dram_active / MOST_DRAM)


@dataclass(frozen=True, slots=True)
class Health:
    """News about a GPU that is not part of a sample, such as an Xid."""

    gpu: GpuId
    at: float
    message: str
    drain: bool  # the GPU must take no further job until an admin resumes it


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this source can and cannot measure, for `carma doctor`."""

    source: str
    provides: tuple[str, ...]  # of sm_active, sm_occupancy, dram_active, utilization, …
    missing: tuple[tuple[str, str], ...] = ()  # (what, why)
    notes: tuple[str, ...] = ()


class TelemetrySource(Protocol):
    """Reads GPUs. Used by one thread at a time; no method raises for a fault of one GPU."""

    @property
    def name(self) -> str: ...

    def discover(self) -> tuple[Gpu, ...]:
        """All GPUs and MIG instances that take jobs, in PCI bus order. Raises CarmaError."""
        ...

    def sample(self, at: float) -> tuple[GpuSample, ...]:
        """One reading of every discovered GPU; if it cannot be read, with its `fault`. A GPU for
        which the driver does not answer is left out."""
        ...

    def silent(self) -> Mapping[GpuId, str]:
        """The GPUs that are left out, and why."""
        ...

    def pids(self, gpu: GpuId) -> frozenset[int] | None:
        """Processes that hold memory on `gpu` now; None if unknown."""
        ...

    def health(self) -> tuple[Health, ...]:
        """News since the last call."""
        ...

    def capabilities(self) -> Capabilities: ...

    def close(self) -> None:
        """Release the driver, so that a GPU can be reset."""
        ...
