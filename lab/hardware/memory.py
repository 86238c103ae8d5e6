"""Stage `memory`: peak memory of training runs as NVML and the allocator tell it, beside what the
estimators say; and what the stack takes beside tensors."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from lab.hardware import loads, pool
from lab.hardware.pool import Lost, Worker
from lab.hardware.telemetry import Watch
from lab.hardware.visit import Entry, Portion, Stage, Visit
from lab.hardware.workloads import WORKLOADS

CONSTANTS = Path(__file__).with_name("constants.py")
EACH_MIB = 14_000  # of the GPU for each of those that run at once: more than they take on average
FULL = 0.9  # share of the GPU's memory in use
SECONDS = 0.4  # that each trains for, once it is warm
TAKES_S, COMPILED_S = 15.0, 40.0  # that a run may take


def measure(visit: Visit) -> None:
    with Watch(visit) as watch:
        for _ in visit.todo(["constants"], str, TAKES_S):
            visit.keep("constants", _constants(visit, watch))
        names = loads.REHEARSED if visit.rehearse else tuple(WORKLOADS)
        todo = visit.todo(names, str, _takes_s)
        for name in todo:  # one alone, to learn whether the driver lists its processes by our pids
            found = _run(name, visit, watch, alone=True)
            visit.keep(name, found)
            if "failed" not in found:
                at_once = watch.gpu.memory_mib // EACH_MIB if found["by"] == "process" else 1
                _several(todo, max(1, at_once), visit, watch)


def _several(todo: Iterator[str], at_once: int, visit: Visit, watch: Watch) -> None:
    """Those that run out of memory beside others are run again, alone; so are those that met a GPU
    so full that PyTorch's allocator may have freed what it would have kept."""
    running: dict[Future[Entry], str] = {}
    again: list[str] = []

    def collect() -> None:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name, found = running.pop(future), future.result()
            full = at_once > 1 and found.get("gpu_used", 0.0) > FULL
            if full or "out of memory" in found.get("failed", ""):
                again.append(name)
            else:
                visit.keep(name, found)

    with ThreadPoolExecutor(at_once) as threads:
        for name in todo:
            running[threads.submit(_run, name, visit, watch, at_once == 1)] = name
            if len(running) == at_once:
                collect()
        while running:
            collect()
    for name in visit.todo(again, str, _takes_s):
        visit.keep(name, _run(name, visit, watch, alone=True))


def _takes_s(name: str) -> float:
    return COMPILED_S if WORKLOADS[name].compile else TAKES_S


def _run(name: str, visit: Visit, watch: Watch, alone: bool) -> Entry:
    """Train until warm and a little longer, look at the memory while the process still has it."""
    begun = time.monotonic()
    before = watch.used_now() if alone else None
    worker = pool.held(name, pool.on(watch.gpu.id), visit.rehearse)
    try:
        worker.hear("ready", pool.READY_WITHIN_S)
        worker.tell(str(SECONDS))
        worker.rest(SECONDS)
        watch.seen()
        peak, by = watch.peak_mib(worker.pid), "process"
        most = watch.used_mib(begun)
        if peak is None and before is not None:
            peak, by = most - before, "device"
        done = worker.end()
    except Lost as error:
        return {"failed": str(error)}
    finally:
        worker.kill()
    steps = done.steps or [second for window in done.windows for second in window.steps]
    return {
        "nvml_mib": peak,
        "by": by,
        "gpu_used": round(most / watch.gpu.memory_mib, 4),
        "allocated_mib": done.allocated_mib,
        "reserved_mib": done.reserved_mib,
        "step_s": round(statistics.median(steps), 6),
        "alone": alone,
        "took_s": round(time.monotonic() - begun, 1),
    }


def _constants(visit: Visit, watch: Watch) -> Entry:
    """By probe: what `constants.py` says, and NVML's figure of its process then."""
    before = watch.used_now()
    device = "cpu" if visit.rehearse else "cuda"
    argv = [sys.executable, str(CONSTANTS), f"--device={device}"]
    worker = Worker(argv, pool.on(watch.gpu.id))
    found: dict[str, Entry] = {}
    try:
        while (line := worker.next(pool.READY_WITHIN_S))["event"] == "constant":
            now = watch.mib(worker.pid)
            line["nvml_mib"] = watch.used_now() - before if now is None else now
            found[line["what"]] = line
            worker.tell("")
    except Lost as error:
        return {"failed": str(error)}
    finally:
        worker.kill()
    return {"probes": list(found.values())}


# -- the page --------------------------------------------------------------------------------------


def blocks(visit: Visit) -> list[str]:
    from lab.hardware import memory_page

    return memory_page.blocks(visit)


STAGE = Stage(
    "memory",
    "Peak memory of training runs, as measured and as estimated",
    (Portion(f"{len(WORKLOADS)} training runs", 4.0),),
    ("torch", "timm", "transformers"),
    measure,
    blocks,
)
