"""The page of stage `memory`, from its entries and those of `estimates` and `loads`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness import bullets, columns
from carmad.config import Estimation
from lab.hardware import estimates
from lab.hardware.visit import Entry, Visit
from lab.hardware.workloads import WORKLOADS
from lab.memory.truth import GIB, accuracy, comparison, halves

ESTIMATORS = {
    "trace, expected": "trace_mib",
    "trace, high": "high_mib",
    "FakeTensor": "faketensor_mib",
    "Horus": "horus_mib",
    "GPUMemNet, where it answers": "gpumemnet_mib",
}
WITHOUT_CONTEXT = ("trace_mib", "high_mib", "gpumemnet_mib")  # to which the constant is added


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload as measured, and what was said of it; MiB."""

    name: str
    peak: int
    entry: Entry
    said: Entry  # {}: not looked at
    again: int | None  # the peak of another run

    @property
    def model(self) -> str:
        return WORKLOADS[self.name].model

    def estimate(self, key: str, constant: float) -> float | None:
        mib: float | None = self.said.get(key)
        return None if mib is None else mib + (constant if key in WITHOUT_CONTEXT else 0)


def blocks(visit: Visit) -> list[str]:
    entries = visit.entries("memory")
    measured = _measured(visit, entries)
    return [
        f"{len(measured)} training runs, trained until their memory was constant. The peak is that "
        "of the whole process tree, as NVML lists it; several ran at the same time, each in a "
        "process of its own.",
        *_accuracies(measured),
        *_runs(measured),
        *_benchmark(measured),
        *_constants(entries.get("constants", {})),
        *_whys("Not measured", "failed", entries),
        *_whys("Not looked at", "refused", visit.entries(estimates.STAGE)),
    ]


def _measured(visit: Visit, entries: Mapping[str, Entry]) -> list[Measured]:
    said, loads = visit.entries(estimates.STAGE), visit.entries("loads")
    return [
        Measured(
            name,
            entry["nvml_mib"],
            entry,
            said.get(name, {}),
            loads.get(name, {}).get("memory_mib"),
        )
        for name, entry in entries.items()
        if entry.get("nvml_mib") is not None
    ]


def _accuracies(measured: Sequence[Measured]) -> list[str]:
    """The constant is from half of the models, the errors are those of the other half."""
    looked = [one for one in measured if "trace_mib" in one.said]
    fitted = halves(Counter(one.model for one in looked))
    tuning = [one for one in looked if one.model in fitted]
    judged = [one for one in looked if one.model not in fitted]
    if not tuning or not judged:
        return ["Not judged: `python -m lab.hardware estimates` looks at the runs."]
    constant = median(one.peak - one.said["trace_mib"] for one in tuning)
    rows = []
    for name, key in ESTIMATORS.items():
        errors = [e - one.peak for one in judged if (e := one.estimate(key, constant)) is not None]
        rows += [(name, accuracy(errors))] if errors else []
    by_history = [
        mib - one.again
        for one in measured
        if one.again is not None and (mib := estimates.by_history(one.name, one.peak)) is not None
    ]
    rows += [("history, after one run", accuracy(by_history))] if by_history else []
    return [
        "## Estimators",
        f"Absolute errors in GiB on {len(judged)} runs. The constant for context and libraries, "
        f"{constant:.0f} MiB, is the median of {len(tuning)} runs of other models; CARMA's default "
        f"is {Estimation().any_context_mib} MiB. `history` is judged on all runs that were "
        "repeated by stage `loads`.",
        comparison(rows, "GiB", ()),
    ]


def _runs(measured: Sequence[Measured]) -> list[str]:
    if not measured:
        return []
    return [
        "## Runs",
        "MiB; the estimates without context (Horus: with its own 800).",
        columns(
            measured,
            ("run", "{0.name}"),
            ("NVML", "{0.peak}"),
            ("by", "{0.entry[by]}"),
            ("reserved", lambda one: _mib(one.entry["reserved_mib"])),
            ("allocated", lambda one: _mib(one.entry["allocated_mib"])),
            ("NVML − reserved", lambda one: _mib(_beside(one))),
            *((name, _saying(key)) for name, key in ESTIMATORS.items()),
            ("NVML, again", lambda one: _mib(one.again)),
            text=(0, 2),
        ),
    ]


def _saying(key: str) -> Callable[[Measured], str]:
    return lambda one: _mib(one.said.get(key))


def _beside(one: Measured) -> float | None:
    reserved = one.entry["reserved_mib"]
    return None if reserved is None else one.peak - reserved


def _mib(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _benchmark(measured: Sequence[Measured]) -> list[str]:
    """Runs that were trained with cudnn.benchmark and without."""
    known = {one.name: one for one in measured}
    pairs = [
        (known[name.removesuffix("-nobench")], one)
        for name, one in known.items()
        if name.endswith("-nobench") and name.removesuffix("-nobench") in known
    ]
    if not pairs:
        return []
    return [
        "## cudnn.benchmark",
        columns(
            pairs,
            ("run", "{0[0].name}"),
            ("NVML, on", "{0[0].peak}"),
            ("off", "{0[1].peak}"),
            ("GiB more", lambda pair: f"{(pair[0].peak - pair[1].peak) / GIB:+.2f}"),
        ),
    ]


def _constants(entry: Entry) -> list[str]:
    if "probes" not in entry:
        return []
    return [
        "## What the stack takes beside tensors",
        "One process, one probe after the other, MiB. Kept: allocated afterwards. Peak: allocated "
        "at most. NVML: of the process then; what it is above reserved is context and libraries. "
        "Input and output of a normalisation are 32 MiB in float32, 16 in bfloat16: what is kept "
        "beyond that is for the backward pass.",
        columns(
            entry["probes"],
            ("probe", "{0[what]}"),
            ("kept", "{0[kept_mib]:.2f}"),
            ("peak", "{0[peak_mib]:.2f}"),
            ("reserved", "{0[reserved_mib]:.0f}"),
            ("NVML", "{0[nvml_mib]}"),
            ("NVML − reserved", lambda probe: f"{probe['nvml_mib'] - probe['reserved_mib']:.0f}"),
        ),
    ]


def _whys(title: str, key: str, entries: Mapping[str, Entry]) -> list[str]:
    whys = [f"{name}: {entry[key]}" for name, entry in entries.items() if key in entry]
    return [f"## {title}", bullets(whys)] if whys else []
