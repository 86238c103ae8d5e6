"""Chooses the telemetry source named in the settings, or the best one for this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from carmad.core.types import GpuId
from carmad.errors import CarmaError
from carmad.gpu import gpm
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.nvml import NvmlSource
from carmad.gpu.profiler import Activity, ActivityReader, Unit, Unprofiled
from carmad.gpu.source import TelemetrySource

_DCGMI = "dcgmi"
_REMEDY = "needs DCGM or a Hopper GPU; install datacenter-gpu-manager and start nvidia-dcgm"


def choose(name: str, period_s: float) -> TelemetrySource:
    """The source `name`: auto, nvml, gpm, dcgm or emulated:DIR, to be sampled every `period_s`.

    Does not need the driver yet, which may be loaded later. Raises CarmaError for other names."""
    kind, _, argument = name.partition(":")
    if kind == "emulated" and argument:
        from carmad.gpu.emulated import EmulatedSource

        return EmulatedSource(Path(argument))
    match name:
        case "auto":
            return NvmlSource(BestProfiler(period_s))
        case "nvml":
            return NvmlSource(Unprofiled("the plain nvml source was asked for"))
        case "gpm":
            return NvmlSource(GpmProfiler())
        case "dcgm":
            return NvmlSource(DcgmProfiler(period_s))
    raise CarmaError(
        f"no telemetry source is called {name!r}", "use auto, nvml, gpm, dcgm or emulated:DIR"
    )


class BestProfiler:
    """GPM if every GPU has it, otherwise DCGM if it is installed: its host engine may start later.
    Decided at the start of each session with the driver."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._best: ActivityReader = Unprofiled("no GPU has been opened yet")

    @property
    def name(self) -> str:
        return self._best.name

    def open(self, units: tuple[Unit, ...]) -> None:
        without_gpm = gpm.lacking(units)
        if not without_gpm:
            self._best = GpmProfiler()
        elif shutil.which(_DCGMI):
            self._best = DcgmProfiler(self._period_s, _DCGMI)
        else:
            why = next(iter(without_gpm.values()))
            self._best = Unprofiled(f"{_REMEDY} ({why}; {_DCGMI} is not installed)")
        self._best.open(units)

    def read(self) -> Mapping[GpuId, Activity]:
        return self._best.read()

    def missing(self) -> tuple[tuple[str, str], ...]:
        return self._best.missing()

    def close(self) -> None:
        self._best.close()
