"""Runs the self-test: which GPU, in what order, for how long, and what becomes of a check that
fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pynvml

from carmad.config import Settings
from carmad.configfile import by_name
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.nvml import NvmlSource, choose
from carmad.gpu.source import Unit
from carmad.installed import VERSION
from carmad.selftest import bench as benches
from carmad.selftest.bench import PROBE, Bench, ProbeFailed
from carmad.selftest.facts import FACTS, Fact
from carmad.selftest.report import Finding, Report, Seen, incomplete

WITHIN_S = 300.0
SOURCE = "auto"

Told = Callable[[Fact, Finding | None], None]  # a check begins; it has ended


def run(
    settings: Settings,
    device: str = "",
    *,
    facts: Sequence[Fact] = FACTS,
    told: Told = lambda *_: None,
    within_s: float = WITHIN_S,
    busy_s: float = 4.0,
    probe: str = PROBE,
) -> Report:
    """Raises CarmaError if there is no GPU that is idle. `device`: its index in CARMA or its UUID.
    `probe`: the module of the checks' processes.

    Whatever has been started is gone when this returns or raises; a Ctrl-C or SIGTERM makes it
    raise KeyboardInterrupt. The last check may take longer than `within_s` is."""
    with benches.orderly(), _open(settings) as source, benches.folder() as folder:
        unit = _idle(source, device)
        report = _blank(unit)  # now: a driver may be lost on the way
        bench = Bench(unit, source, settings, folder, busy_s, probe)
        try:
            found = tuple(_findings(bench, facts, told, time.monotonic() + within_s))
        finally:
            bench.clear()
        return replace(report, findings=found)


@contextmanager
def _open(settings: Settings) -> Iterator[NvmlSource]:
    """The source that the daemon would read a real GPU with."""
    source = choose(SOURCE, settings.monitor.period_s)
    assert isinstance(source, NvmlSource)
    try:
        yield source
    finally:
        source.close()


def _idle(source: NvmlSource, device: str) -> Unit:
    """The GPU to test. Raises CarmaError unless it is idle, and, unless it was named, all are."""
    source.discover()
    units = source.units
    busy = {sample.gpu: sample for sample in source.sample(time.time()) if _in_use(sample)}
    free = [unit.gpu.index for unit in units if unit.gpu.id not in busy]
    others = f"idle: {', '.join(map(str, free))}" if free else "wait until one is idle"
    if not units:
        raise CarmaError("there is no GPU to test", "does nvidia-smi list any?")
    if busy and not device:
        used = ", ".join(_describe(unit, busy) for unit in units if unit.gpu.id in busy)
        hint = f"name one that is idle: carma doctor --gpu --device N ({others})"
        raise CarmaError(f"in use: {used}", hint)
    named = (unit for unit in units if (device or "0") in (str(unit.gpu.index), unit.gpu.id))
    chosen = next(named, None)
    if chosen is None:
        raise CarmaError(f"there is no GPU {device}", others)
    if chosen.gpu.id in busy:
        raise CarmaError(f"in use: {_describe(chosen, busy)}", others)
    return chosen


def _in_use(sample: GpuSample) -> bool:
    return bool(sample.processes or sample.fault)


def _describe(unit: Unit, busy: Mapping[GpuId, GpuSample]) -> str:
    sample = busy[unit.gpu.id]
    pids = ", ".join(str(use.pid) for use in sample.processes)
    return f"GPU {unit.gpu.index} ({sample.fault or f'processes {pids}'})"


def _findings(
    bench: Bench, facts: Sequence[Fact], told: Told, deadline: float
) -> Iterator[Finding]:
    current = by_name(bench.settings)
    for fact in facts:
        told(fact, None)
        seen = _observe(bench, fact, deadline)
        changes = {name: its for name, its in seen.settings.items() if current.get(name) != its}
        found = Finding(fact=fact.name, **asdict(replace(seen, settings=changes)))
        told(fact, found)
        yield found


def _observe(bench: Bench, fact: Fact, deadline: float) -> Seen:
    if time.monotonic() > deadline:
        return incomplete("no time was left for it")
    try:
        if others := bench.others():
            return incomplete(f"another process has come to the GPU: {others}")
        return fact.check(bench)
    except CarmaError as error:
        return incomplete(f"{error.message}; {error.hint}" if error.hint else error.message)
    except ProbeFailed as error:
        return incomplete(str(error))
    except Exception as error:  # noqa: BLE001 - the driver is foreign code
        return incomplete(f"{type(error).__name__}: {error}")
    finally:
        bench.clear()


def _blank(unit: Unit) -> Report:
    version = pynvml.nvmlSystemGetCudaDriverVersion()
    return Report(
        gpu=unit.gpu.name,
        memory_mib=unit.gpu.memory_mib,
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        carma=VERSION,
        user="root" if os.geteuid() == 0 else "user",
        findings=(),
    )
