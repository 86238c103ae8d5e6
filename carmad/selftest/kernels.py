"""Checks of what tells that a process runs kernels."""

from __future__ import annotations

import time

from carmad.selftest.bench import PIDS_HIDDEN, Bench, Probe
from carmad.selftest.report import Seen, judged, unknown

PERIOD_S = 0.5  # between readings; the daemon's are a second apart


def busy(bench: Bench) -> Seen:
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
    return judged(highest > 0, detail, sm_util_percent=100 * highest, first_sample_s=after_s)


def idle(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown("MIG instances do not report utilisation per process")
    if not bench.lists_pids():
        return unknown(PIDS_HIDDEN)
    probe = bench.probe()
    highest = _highest(bench, probe)
    if highest is None:
        return unknown("the driver reports no utilisation per process")
    detail = f"a context without kernels for {bench.busy_s:g} s: highest sample {highest:.0%}"
    return judged(highest == 0, detail, sm_util_percent=100 * highest)


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
    detail = f"of two clients, the busy one has {_said(worked)}, the idle one {_said(slept)}"
    return judged(
        bool(worked) and not slept,
        detail,
        working_percent=100 * (worked or 0.0),
        idle_percent=100 * (slept or 0.0),
        working_sampled=worked is not None,
        idle_sampled=slept is not None,
    )


def _said(sm_util: float | None) -> str:
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
        return judged(False, "a process on the instance is not listed there")
    held = use.memory_mib or 0
    return judged(
        held > 0 and use.sm_util is None,
        f"a process with kernels is listed with {held} MiB and {_said(use.sm_util)}",
        process_mib=held,
        sampled=use.sm_util is not None,
    )
