"""Where SMACT, SMOCC and DRAMA come from: the hole in `NvmlSource` that GPM and DCGM fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from carmad.core.types import Gpu, GpuId

PROFILED = ("sm_active", "sm_occupancy", "dram_active")


@dataclass(frozen=True, slots=True)
class Unit:
    """What a job can be given, and where the driver keeps it. The ids are None unless MIG."""

    gpu: Gpu
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def physical(self) -> GpuId:
        return self.gpu.parent or self.gpu.id


@dataclass(frozen=True, slots=True)
class Activity:
    """Fractions of the last period, 0–1; None means not to be had, never zero."""

    sm_active: float | None = None  # SMACT
    sm_occupancy: float | None = None  # SMOCC
    dram_active: float | None = None  # DRAMA


class Profiler(Protocol):
    """Reads what plain NVML cannot. Lives within one NVML session: `open` … `close`, again and
    again. No method raises."""

    @property
    def name(self) -> str: ...

    def open(self, units: tuple[Unit, ...]) -> None:
        """Begin; NVML is initialised. Does not block."""
        ...

    def read(self) -> Mapping[GpuId, Activity]:
        """What is known now; a GPU that cannot be read is left out. Does not block."""
        ...

    def missing(self) -> tuple[tuple[str, str], ...]:
        """(what, why), for `carma doctor`."""
        ...

    def close(self) -> None:
        """Let go of the driver; NVML is still initialised."""
        ...


class Unprofiled:
    """Stands in where neither GPM nor DCGM is to be had."""

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
