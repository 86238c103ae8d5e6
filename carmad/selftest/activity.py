"""Checks of GPM and DCGM: are they there, and in which units?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from statistics import median

from carmad.configwriting import Setting
from carmad.gpu import gpm
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.source import Activity, ActivityReader
from carmad.selftest.bench import Bench
from carmad.selftest.report import Seen, judge, unknown

PERIOD_S = 0.5  # between readings
BUSY, IDLE = 0.6, 0.2  # SM activity of a GPU whose every SM spins, and of one without kernels
ANSWERS_WITHIN_S = 15.0  # DCGM, from its start
STARTS_WITHIN_S = 5.0  # a kernel, on a loaded machine
DCGM_PERIOD_S = 1.0
WITHOUT = {"monitor.source": "nvml"}
NO_DCGM = "dcgmi is not installed"


def gpm_activity(bench: Bench) -> Seen:
    if why := no_gpm(bench):
        return unknown(why)
    return _activity(bench, GpmProfiler(), WITHOUT)


def dcgm_activity(bench: Bench) -> Seen:
    if shutil.which("dcgmi") is None:
        return unknown(NO_DCGM)
    # Where there is GPM, nobody reads DCGM.
    return _activity(bench, DcgmProfiler(DCGM_PERIOD_S), WITHOUT if no_gpm(bench) else {})


def no_gpm(bench: Bench) -> str:
    """Why this GPU has none; "" if it has."""
    return next(iter(gpm.find_unsupported([bench.unit]).values()), "")


def _activity(bench: Bench, reader: ActivityReader, settings: Mapping[str, Setting]) -> Seen:
    probe = bench.probe()
    reader.open((bench.unit,))
    try:
        idle = read(bench, reader)
        missing = "; ".join({why for _, why in reader.missing()}) or "it does not say why"
        if not idle and reader.name == DcgmProfiler.name:
            return unknown(f"DCGM gives no reading: {missing}")
        probe.begin("spin", s=2 * bench.busy_s + ANSWERS_WITHIN_S + STARTS_WITHIN_S)
        await_kernels(bench, reader, lambda its: (its.sm_active or 0.0) > IDLE)
        busy = read(bench, reader)
    finally:
        reader.close()
    at_rest, at_work = (middle([a.sm_active for a in its]) for its in (idle, busy))
    if at_work is None:
        return judge(False, f"no SM activity: {missing}", settings)
    detail = f"SM activity {at_work:.2f} with every SM busy"
    detail += "" if at_rest is None else f", {at_rest:.2f} without kernels"
    return judge(
        at_work >= BUSY and (at_rest or 0.0) <= IDLE,
        detail,
        settings,
        sm_active_busy=at_work,
        sm_active_idle=at_rest,
        sm_occupancy_busy=middle([a.sm_occupancy for a in busy]),
        dram_active_busy=middle([a.dram_active for a in busy]),
    )


def await_kernels(bench: Bench, reader: ActivityReader, begun: Callable[[Activity], bool]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        its = reader.read().get(bench.gpu.id)
        if its is not None and begun(its):
            return
        time.sleep(PERIOD_S)


def read(bench: Bench, reader: ActivityReader) -> list[Activity]:
    """The readings of `busy_s`, from the first one; without that which began before."""
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    while bench.gpu.id not in reader.read() and time.monotonic() < deadline:
        time.sleep(PERIOD_S)
    found = []
    until = time.monotonic() + bench.busy_s
    while time.monotonic() < until:
        time.sleep(PERIOD_S)
        found += [its] if (its := reader.read().get(bench.gpu.id)) else []
    return found[len(found) // 2 :]


def middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
