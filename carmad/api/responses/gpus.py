"""Answers about GPUs."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class RiskOut(TypedDict):
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    sm_source: str | None
    risky: bool
    samples: int


class ResidentOut(TypedDict):
    id: int
    label: str
    user: str
    name: str
    memory_mib: int | None
    mode: str | None


class ExternalOut(TypedDict):
    pid: int
    user: str
    command: str
    memory_mib: int | None


class GpuOut(TypedDict):
    id: str
    index: int
    name: str
    mig: bool
    parent: str | None
    island: str  # GPUs with the same one are near each other; "": all are
    memory_mib: int
    memory_used_mib: int | None
    memory_free_mib: int | None
    admissible_free_mib: int
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    utilization: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: int | None
    risk: RiskOut
    state: str
    state_detail: str
    jobs: list[ResidentOut]
    outsiders: list[ExternalOut]  # external processes, under their name in release 0.1.0


class SourceOut(TypedDict):
    name: str
    provides: list[str]
    missing: list[list[str]]
    notes: list[str]


class GpusOut(TypedDict):
    schema: int
    gpus: list[GpuOut]
    source: SourceOut
    thresholds: dict[str, Any]


class GpuResultOut(TypedDict):
    id: str
    index: int
    drained: bool


class GpuResultsOut(TypedDict):
    schema: int
    gpus: list[GpuResultOut]
