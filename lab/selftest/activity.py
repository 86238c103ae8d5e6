"""Checks of what tells that a process runs kernels, and of the traffic that GPM and DCGM report."""

from __future__ import annotations

import shutil
import time

from carmad.core.gpus.readings import FAINT
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.source import ActivityReader
from carmad.selftest.activity import await_kernels, middle, no_gpm, read
from carmad.selftest.bench import Bench, Probe
from carmad.selftest.report import Seen, judge, unknown
from lab.selftest.memory import PIDS_HIDDEN, lists_pids

# -- utilisation per process

PERIOD_S = 0.5  # between readings; the daemon's are a second apart


def busy_sampled(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown("MIG instances do not report utilisation per process")
    if not lists_pids(bench):
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
    if not lists_pids(bench):
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
    if not lists_pids(bench):
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

DCGM_PERIOD_S = 1.0
RECEIVED, COPYING = "pcie_rx_mib_s", 100.0


def gpm_traffic(bench: Bench) -> Seen:
    if why := no_gpm(bench):
        return unknown(why)
    return _traffic(bench, GpmProfiler())


def dcgm_traffic(bench: Bench) -> Seen:
    if shutil.which("dcgmi") is None:
        return unknown("dcgmi is not installed")
    return _traffic(bench, DcgmProfiler(DCGM_PERIOD_S))


def _traffic(bench: Bench, reader: ActivityReader) -> Seen:
    probe = bench.probe()
    reader.open((bench.unit,))
    try:
        read(bench, reader)
        probe.begin("copy", s=3 * bench.busy_s)
        await_kernels(bench, reader, lambda its: dict(its.more).get(RECEIVED, COPYING) >= COPYING)
        seen = read(bench, reader)
    finally:
        reader.close()
    copied = probe.answer()["mib_s"]
    to_gpu = middle([dict(a.more).get(RECEIVED) for a in seen])
    from_gpu = middle([dict(a.more).get("pcie_tx_mib_s") for a in seen])
    if to_gpu is None:
        return unknown("the GPU does not count PCIe traffic", copied_mib_s=round(copied))
    return judge(
        0.5 * copied <= to_gpu <= 2 * copied,
        f"{copied:.0f} MiB/s were copied to the GPU, {to_gpu:.0f} MiB/s are reported as received",
        copied_mib_s=copied,
        pcie_rx_mib_s=to_gpu,
        pcie_tx_mib_s=from_gpu,
    )
