"""Picks the telemetry source that an admin names, or the best that this machine has."""

from __future__ import annotations

from pathlib import Path

from carmad.errors import CarmaError
from carmad.gpu import dcgm, driver, gpm
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.nvml import NvmlSource
from carmad.gpu.profiler import Profiler, Unprofiled
from carmad.gpu.source import TelemetrySource

_REMEDY = "needs DCGM or a Hopper GPU; install datacenter-gpu-manager and start nvidia-dcgm"


def choose(name: str, period_s: float) -> TelemetrySource:
    """The source `name`: auto, nvml, gpm, dcgm or emulated:DIR, to be sampled every `period_s`.

    Raises CarmaError for another name, and for auto where there is no working driver."""
    kind, _, argument = name.partition(":")
    if kind == "emulated" and argument:
        from carmad.gpu.emulated import EmulatedSource

        return EmulatedSource(Path(argument))
    match name:
        case "auto":
            return NvmlSource(_best_profiler(period_s))
        case "nvml":
            return NvmlSource(Unprofiled("the plain nvml source was asked for"))
        case "gpm":
            return NvmlSource(GpmProfiler())
        case "dcgm":
            return NvmlSource(DcgmProfiler(period_s))
    raise CarmaError(
        f"no telemetry source is called {name!r}", "use auto, nvml, gpm, dcgm or emulated:DIR"
    )


def _best_profiler(period_s: float) -> Profiler:
    driver.connect()
    try:
        boards, _ = driver.list_boards()
        without_gpm = gpm.lacking(driver.units_of(boards))
    finally:
        driver.disconnect()
    if not without_gpm:
        return GpmProfiler()
    no_dcgm = dcgm.unavailable()
    if no_dcgm is None:
        return DcgmProfiler(period_s)
    first = next(iter(without_gpm.values()))
    return Unprofiled(f"{_REMEDY} ({first}; {no_dcgm})")
