"""The interface of telemetry sources and their values; and that of the readers from which
`NvmlSource` gets SMACT, SMOCC, DRAMA and more (GPM and DCGM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.jobs.attempt import GpuId

# NVML's utilisation counts the time in which any kernel runs, SMACT the SMs that have work; how one
# follows from the other is fitted in `carma_simulator.catalogue`.
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


PROFILED = ("sm_active", "sm_occupancy", "dram_active")
# The other inputs of Castor's interference model (Castor paper, table 2), in this order:
SHARES = ("graphics_active", "tensor_active", "fp32_active", "fp16_active")  # 0–1
TRAFFIC = ("pcie_tx_mib_s", "pcie_rx_mib_s", "nvlink_tx_mib_s", "nvlink_rx_mib_s")


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU that jobs can be given, and its ids in the driver, which are None unless MIG."""

    gpu: Gpu
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def physical(self) -> GpuId:
        return self.gpu.parent or self.gpu.id


@dataclass(frozen=True, slots=True)
class Activity:
    """Fractions of the last period, 0–1; None means not available, never zero."""

    sm_active: float | None = None  # SMACT
    sm_occupancy: float | None = None  # SMOCC
    dram_active: float | None = None  # DRAMA
    more: tuple[tuple[str, float], ...] = ()  # of SHARES and TRAFFIC, those available


def activity_of(figures: Mapping[str, float | None]) -> Activity:
    """From values by name, of PROFILED, SHARES and TRAFFIC."""
    more = ((name, figures.get(name)) for name in (*SHARES, *TRAFFIC))
    return Activity(
        sm_active=figures.get("sm_active"),
        sm_occupancy=figures.get("sm_occupancy"),
        dram_active=figures.get("dram_active"),
        more=tuple((name, value) for name, value in more if value is not None),
    )


class ActivityReader(Protocol):
    """Reads what plain NVML cannot. Lives within one NVML session: `open` … `close`, again and
    again. No method raises."""

    @property
    def name(self) -> str: ...

    def open(self, units: tuple[Unit, ...]) -> None:
        """Start; NVML is initialised. Does not block."""
        ...

    def read(self) -> Mapping[GpuId, Activity]:
        """The latest readings; GPUs that cannot be read are left out. Does not block."""
        ...

    def missing(self) -> tuple[tuple[str, str], ...]:
        """(what, why), for `carma doctor`."""
        ...

    def close(self) -> None:
        """Release the driver; NVML is still initialised."""
        ...


class Unprofiled:
    """Used when neither GPM nor DCGM is available."""

    name = ""

    def __init__(self, why: str) -> None:
        self._why = why

    def open(self, units: tuple[Unit, ...]) -> None:
        pass

    def read(self) -> Mapping[GpuId, Activity]:
        return {}

    def missing(self) -> tuple[tuple[str, str], ...]:
        return tuple((what, self._why) for what in PROFILED)

    def close(self) -> None:
        pass
