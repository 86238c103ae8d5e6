"""Checks of what tells that a process runs kernels, and of GPM and DCGM: are they there, and in
which units?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from statistics import median

from carmad.configwriting import Setting
from carmad.core.readings import FAINT
from carmad.gpu import gpm
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.source import Activity, ActivityReader
from carmad.selftest.bench import PIDS_HIDDEN, Bench, Probe
from carmad.selftest.report import Seen, judge, unknown

# -- utilisation per process

PERIOD_S = 0.5  # between readings; the daemon's are a second apart


def busy_sampled(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown("MIG instances do not report utilisation per process")
    if not bench.lists_pids():
        return unknown(PIDS_HIDDEN)
    probe = bench.probe()
    begun = time.monotonic()
    probe.begin("spin", s=bench.busy_s)
    highest, after_s = 0.0, None
    for sample in bench.samples(bench.busy_s, PERIOD_S):
        use = bench.use(probe, sample)
        highest = max(highest, (use.sm_util if use else 0.0) or 0.0)
        if highest and after_s is None:
            after_s = time.monotonic() - begun
    probe.answer()
    detail = f"kernels ran for {bench.busy_s:g} s: its highest sample is {highest:.0%}"
    return judge(highest > 0, detail, sm_util_percent=100 * highest, first_sample_s=after_s)


def context_unsampled(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown("MIG instances do not report utilisation per process")
    if not bench.lists_pids():
        return unknown(PIDS_HIDDEN)
    probe = bench.probe()
    highest = _highest(bench, probe)
    if highest is None:
        return unknown("the driver reports no utilisation per process")
    detail = f"a context without kernels for {bench.busy_s:g} s: highest sample {highest:.0%}"
    return judge(highest <= FAINT, detail, sm_util_percent=100 * highest)


def _highest(bench: Bench, probe: Probe) -> float | None:
    """None: it had no sample at all."""
    found: list[float] = []
    for sample in bench.samples(bench.busy_s, PERIOD_S):
        use = bench.use(probe, sample)
        found += [use.sm_util] if use is not None and use.sm_util is not None else []
    return max(found, default=None)


def mps_clients(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown("MIG instances do not report utilisation per process")
    if not bench.lists_pids():
        return unknown(PIDS_HIDDEN)
    mps = bench.serve()
    working, sleeping = bench.probe(mps), bench.probe(mps)
    working.begin("spin", s=3 * bench.busy_s)
    worked, slept = _highest(bench, working), _highest(bench, sleeping)
    detail = f"of two clients, the busy one has {_percent(worked)}, the idle one {_percent(slept)}"
    return judge(
        bool(worked) and not slept,
        detail,
        working_percent=100 * (worked or 0.0),
        idle_percent=100 * (slept or 0.0),
        working_sampled=worked is not None,
        idle_sampled=slept is not None,
    )


def _percent(sm_util: float | None) -> str:
    return "no sample" if sm_util is None else f"{sm_util:.0%}"


def mig(bench: Bench) -> Seen:
    if not bench.gpu.is_mig:
        return unknown("MIG is off, or the GPU has none")
    probe = bench.probe()
    probe.ask("allocate", mib=bench.mib(1024))
    probe.begin("spin", s=bench.busy_s)
    use = bench.until(lambda sample: bench.use(probe, sample), bench.busy_s)
    probe.answer()
    if use is None and bench.sample().processes:
        return unknown(PIDS_HIDDEN)
    if use is None:
        return judge(False, "a process on the instance is not listed there")
    held = use.memory_mib or 0
    return judge(
        held > 0 and use.sm_util is None,
        f"a process with kernels is listed with {held} MiB and {_percent(use.sm_util)}",
        process_mib=held,
        sampled=use.sm_util is not None,
    )


# -- GPM and DCGM

BUSY, IDLE = 0.6, 0.2  # SM activity of a GPU whose every SM spins, and of one without kernels
ANSWERS_WITHIN_S = 15.0  # DCGM, from its start
STARTS_WITHIN_S = 5.0  # a kernel, on a loaded machine
DCGM_PERIOD_S = 1.0
WITHOUT = {"monitor.source": "nvml"}
RECEIVED, COPYING = "pcie_rx_mib_s", 100.0
NO_DCGM = "dcgmi is not installed"


def gpm_activity(bench: Bench) -> Seen:
    if why := _no_gpm(bench):
        return unknown(why)
    return _activity(bench, GpmProfiler(), WITHOUT)


def dcgm_activity(bench: Bench) -> Seen:
    if shutil.which("dcgmi") is None:
        return unknown(NO_DCGM)
    # Where there is GPM, nobody reads DCGM.
    return _activity(bench, DcgmProfiler(DCGM_PERIOD_S), WITHOUT if _no_gpm(bench) else {})


def gpm_traffic(bench: Bench) -> Seen:
    if why := _no_gpm(bench):
        return unknown(why)
    return _traffic(bench, GpmProfiler())


def dcgm_traffic(bench: Bench) -> Seen:
    if shutil.which("dcgmi") is None:
        return unknown(NO_DCGM)
    return _traffic(bench, DcgmProfiler(DCGM_PERIOD_S))


def _no_gpm(bench: Bench) -> str:
    return next(iter(gpm.find_unsupported([bench.unit]).values()), "")


def _activity(bench: Bench, reader: ActivityReader, settings: Mapping[str, Setting]) -> Seen:
    probe = bench.probe()
    reader.open((bench.unit,))
    try:
        idle = _read(bench, reader)
        missing = "; ".join({why for _, why in reader.missing()}) or "it does not say why"
        if not idle and reader.name == DcgmProfiler.name:
            return unknown(f"DCGM gives no reading: {missing}")
        probe.begin("spin", s=2 * bench.busy_s + ANSWERS_WITHIN_S + STARTS_WITHIN_S)
        _await(bench, reader, lambda its: (its.sm_active or 0.0) > IDLE)
        busy = _read(bench, reader)
    finally:
        reader.close()
    at_rest, at_work = (_middle([a.sm_active for a in its]) for its in (idle, busy))
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
        sm_occupancy_busy=_middle([a.sm_occupancy for a in busy]),
        dram_active_busy=_middle([a.dram_active for a in busy]),
    )


def _await(bench: Bench, reader: ActivityReader, begun: Callable[[Activity], bool]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        its = reader.read().get(bench.gpu.id)
        if its is not None and begun(its):
            return
        time.sleep(PERIOD_S)


def _traffic(bench: Bench, reader: ActivityReader) -> Seen:
    probe = bench.probe()
    reader.open((bench.unit,))
    try:
        _read(bench, reader)
        probe.begin("copy", s=3 * bench.busy_s)
        _await(bench, reader, lambda its: dict(its.more).get(RECEIVED, COPYING) >= COPYING)
        seen = _read(bench, reader)
    finally:
        reader.close()
    copied = probe.answer()["mib_s"]
    to_gpu = _middle([dict(a.more).get(RECEIVED) for a in seen])
    from_gpu = _middle([dict(a.more).get("pcie_tx_mib_s") for a in seen])
    if to_gpu is None:
        return unknown("the GPU does not count PCIe traffic", copied_mib_s=round(copied))
    return judge(
        0.5 * copied <= to_gpu <= 2 * copied,
        f"{copied:.0f} MiB/s were copied to the GPU, {to_gpu:.0f} MiB/s are reported as received",
        copied_mib_s=copied,
        pcie_rx_mib_s=to_gpu,
        pcie_tx_mib_s=from_gpu,
    )


def _read(bench: Bench, reader: ActivityReader) -> list[Activity]:
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


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
