"""Stage `loads`: what training runs ask of the GPU alone: SMACT, SMOCC, DRAMA, power, step time."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.harness import bullets, columns
from carma_simulator.catalogue import activity
from carma_simulator.experiment import Load
from carmad.gpu.source import utilization
from lab.hardware import pool
from lab.hardware.pool import Pool
from lab.hardware.telemetry import Watch
from lab.hardware.visit import Entry, Portion, Stage, Visit, provenance
from lab.hardware.workloads import WORKLOADS

# Of networks that ask for little to all of the GPU. Those of PAIRED come first, and are of a dozen
# models.
PAIRED = (
    "resnet50-b64",
    "mobilenetv3_small_100-b64",
    "bert_base-b32-t128",
    "mlp1024x4-b128",
    "vit_base_patch16_224-b32",
    "efficientnet_b0-b32",
    "gpt2-b4-t512",
    "resnet18-b32",
    "vgg16-b32",
    "vit_tiny_patch16_224-b64",
    "mlp4096x8-b2048",
    "mobilenetv2_100-b32",
    "resnet50-b64-fp16-cl",
    "bert_small-b64-t128",
    "densenet121-b32",
    "swin_tiny_patch4_window7_224-b32",
)
MORE = (
    "resnet50-b16",
    "bert_base-b8-t128",
    "mobilenetv3_small_100-b256",
    "convnext_tiny-b32-adamw",
    "vit_base_patch16_224-b32-fp16",
    "gpt2-b4-t512-fp16",
    "efficientnet_b0-b128",
    "mlp4096x8-b256",
)
REHEARSED = ("mlp4096x8-b256", "mlp1024x4-b128")
IDLE = "idle"
ACTIVITY = ("sm_active", "sm_occupancy", "dram_active")
UTILIZATION = ("utilization", "memory_utilization")
SIZES = ((0.7, "heavy"), (0.3, "medium"), (0.0, "light"))  # by utilisation, as Lucid's
WINDOW_S, REHEARSED_S = 2.0, 1.0


def measure(visit: Visit) -> None:
    """As many as the GPU has room for are loaded at once, and train in turn: contexts that are idle
    take no time of the GPU."""
    seconds = REHEARSED_S if visit.rehearse else WINDOW_S
    names = REHEARSED if visit.rehearse else (*PAIRED, *MORE)
    missing = list(visit.todo(names, str, pool.START_S))
    with Watch(visit) as watch:
        waves = math.ceil(len(missing) / pool.most(watch.gpu.memory_mib))
        for wave in (missing[n::waves] for n in range(waves)):
            if wave := list(visit.todo(wave, str, pool.START_S)):
                _wave(wave, seconds, visit, watch)


def _wave(names: Sequence[str], seconds: float, visit: Visit, watch: Watch) -> None:
    with Pool(names, pool.on(watch.gpu.id), visit.rehearse) as held:
        for name in visit.todo((IDLE, *names), str, seconds):
            visit.keep(name, _one(name, seconds, held, watch))


def _one(name: str, seconds: float, held: Pool, watch: Watch) -> Entry:
    if name == IDLE:
        begun = time.monotonic()
        time.sleep(seconds)
        return {**watch.means(begun, time.monotonic())}
    windows = held.train([name], seconds)
    if not windows:
        return {"failed": held.lost[name]}
    window = windows[name]
    if len(window.ended) < 2:
        return {"failed": "too few steps"}
    return {
        "batch": WORKLOADS[name].batch,
        "step_s": round(median(window.steps[1:]), 6),
        "steps": len(window.ended),
        **watch.means(window.began, window.ended[-1]),
        "memory_mib": watch.peak_mib(held.workers[name].pid),
    }


def loads(visit: Visit) -> dict[str, Load]:
    """As the simulator has them, by workload: those of which the GPU told enough."""
    in_memory = visit.entries("memory")
    return {
        name: Load(
            WORKLOADS[name].model,
            WORKLOADS[name].batch,
            memory_mib=_memory_mib(entry, in_memory.get(name, {})) or 0,
            **found,
        )
        for name, entry in visit.entries("loads").items()
        if name != IDLE and (found := _activity(entry))
    }


def _activity(entry: Entry) -> Entry:
    """As the driver tells it, or else by NVML's utilisation; {} without either."""
    if not _derived(entry):
        return {what: entry[what] for what in ACTIVITY}
    gpu, memory = (entry.get(what) for what in UTILIZATION)
    if gpu is None or memory is None:
        return {}
    return {what: round(its, 4) for what, its in zip(ACTIVITY, activity(gpu, memory), strict=True)}


def _memory_mib(entry: Entry, in_memory: Entry) -> int | None:
    """Of the process; where the driver hides it, what stage `memory` found alone on the GPU: here
    all are loaded at once."""
    mib: int | None = entry.get("memory_mib")
    return in_memory.get("nvml_mib") if mib is None else mib


# -- the page --------------------------------------------------------------------------------------


def blocks(visit: Visit) -> list[str]:
    entries = visit.entries("loads")
    idle = entries.pop(IDLE, {})
    good = [(name, entry) for name, entry in entries.items() if "failed" not in entry]
    failures = [f"{name}: {why}" for name, entry in entries.items() if (why := entry.get("failed"))]
    rows = catalogue_rows(visit)
    return [
        f"{len(good)} training runs, each alone while others waited, loaded. Means of a window "
        f"of {WINDOW_S:g} s. With some of them loaded and none training, the GPU took "
        f"{_number(idle.get('power_w'), '{:.0f}')} W.",
        *_notes(visit, good),
        *([_table(good)] if good else []),
        *(["## Not measured", bullets(failures)] if failures else []),
        *(["## As rows of the simulator's catalogue", f"```csv\n{rows}```"] if rows else []),
    ]


def _notes(visit: Visit, good: Sequence[tuple[str, Entry]]) -> list[str]:
    """What the driver does not tell, and what is taken instead."""
    notes = []
    if derived := [name for name, entry in good if _derived(entry)]:
        known = sum(bool(_activity(entry)) for name, entry in good if name in derived)
        notes.append(
            f"The driver tells no SMACT, SMOCC and DRAMA of {len(derived)} runs. Those of {known} "
            "are derived from NVML's utilisation (`carma_simulator.catalogue.activity`)."
        )
    if hidden := [name for name, entry in good if entry.get("memory_mib") is None]:
        in_memory = visit.entries("memory")
        known = sum(in_memory.get(name, {}).get("nvml_mib") is not None for name in hidden)
        notes.append(
            f"The driver does not list {len(hidden)} runs by their pids, so their memory is "
            f"unknown here. That of {known} is taken from stage `memory`; of the others, run it."
        )
    return notes


def _derived(entry: Entry) -> bool:
    return None in [entry.get(what) for what in ACTIVITY]


def _table(good: Sequence[tuple[str, Entry]]) -> str:
    return columns(
        good,
        ("run", "{0[0]}"),
        *((title, _cell(key, form)) for title, key, form in SHOWN),
    )


SHOWN = (
    ("SMACT", "sm_active", "{:.3f}"),
    ("SMOCC", "sm_occupancy", "{:.3f}"),
    ("DRAMA", "dram_active", "{:.3f}"),
    ("NVML's utilisation", "utilization", "{:.2f}"),
    ("power W", "power_w", "{:.0f}"),
    ("step s", "step_s", "{:.4f}"),
    ("steps", "steps", "{}"),
    ("NVML MiB", "memory_mib", "{}"),
)


def _cell(key: str, form: str) -> Callable[[tuple[str, Entry]], str]:
    return lambda row: _number(row[1].get(key), form)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def catalogue_rows(visit: Visit) -> str:
    """CSV rows for the simulator's `coefficients/catalogue.csv`, with where they are from; "" if
    the GPU told no activity. What NVML's utilisation would be follows, as in the emulation."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    source, entries = provenance(visit), visit.entries("loads")
    for name, load in loads(visit).items():
        util, memory = utilization(load.sm_active, load.dram_active)
        size = next(size for least, size in SIZES if util >= least)
        how = f"{name}, activity derived" if _derived(entries[name]) else name
        told = (round(util, 3), round(memory, 3), f"{source}; {how}")
        measured = (load.sm_active, load.sm_occupancy, load.dram_active)
        table.writerow(
            (load.model, "", load.batch_size, 1, size, "", load.memory_mib, *told, *measured)
        )
    return lines.getvalue()


STAGE = Stage(
    "loads",
    "What training runs ask of the GPU, alone",
    (Portion(f"{len(PAIRED) + len(MORE)} training runs", 2.0),),
    ("torch", "timm", "transformers"),
    measure,
    blocks,
)
