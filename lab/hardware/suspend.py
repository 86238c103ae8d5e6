"""Stage `suspend`: what suspending a job by CUDA's process checkpoint takes, and whether it harms
anything; and the driver's memory limits of a cgroup."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import columns
from lab.hardware import child
from lab.hardware.suspend_cases import CASES, GIB, SIZES, Case
from lab.hardware.visit import Entry, Portion, Stage, Visit

CASE_S = 180.0  # that one may take


def measure(visit: Visit) -> None:
    takes_s = {case.name: case.takes_s for case in CASES}
    facts = [case.fact for case in CASES]
    child.measure(visit, facts, "lab.hardware.suspend", CASE_S, lambda fact: takes_s[fact.name])


def blocks(visit: Visit) -> list[str]:
    kept = visit.entries()
    sizes = [(case, kept[case.name]) for case in SIZES if "held_mib" in _seen(kept, case)]
    rest = [case for case in CASES if case.name in kept and case not in [each for each, _ in sizes]]
    left = [case.name for case in CASES if case.name not in kept]
    return [
        "A process is suspended by root, from another process: lock, checkpoint; and resumed:"
        " restore, unlock. Trainings are suspended as jobs are, by `carmad.gpu.checkpoint`.",
        *(["## What it takes", _speeds(sizes)] if sizes else []),
        *(["## What was seen", _table(rest, kept)] if rest else []),
        *([f"Not tried yet: {', '.join(left)}."] if left else []),
    ]


def _seen(kept: dict[str, Entry], case: Case) -> Entry:
    """What its check has observed."""
    found: Entry = kept.get(case.name, {}).get("observed", {})
    return found


def _speeds(sizes: list[tuple[Case, Entry]]) -> str:
    rows = [entry["observed"] | {"entry": entry} for _, entry in sizes]
    return columns(
        rows,
        ("memory by NVML, MiB", "{0[held_mib]}"),
        ("lock s", "{0[lock_s]:.3f}"),
        ("checkpoint s", "{0[checkpoint_s]:.2f}"),
        ("restore s", "{0[restore_s]:.2f}"),
        ("unlock s", "{0[unlock_s]:.3f}"),
        ("GiB/s out", lambda row: _rate(row, "checkpoint_s")),
        ("GiB/s in", lambda row: _rate(row, "restore_s")),
        ("its host memory grew by, MiB", "{0[host_mib]}"),
        ("the host's shrank by, MiB", "{0[taken_mib]}"),
        ("", "{0[entry][verdict]}: {0[entry][detail]}"),
        text=(9,),
    )


def _rate(row: Entry, seconds: str) -> str:
    return f"{row['held_mib'] / GIB / row[seconds]:.1f}" if row[seconds] else "–"


def _table(cases: list[Case], kept: dict[str, Entry]) -> str:
    rows = [
        f"| {case.asked} | {kept[case.name]['verdict']} | {_cell(kept[case.name]['detail'])} |"
        for case in cases
    ]
    return "\n".join(["| asked | | seen |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _parts() -> Iterator[Portion]:
    """The smaller sizes in one: they are read together."""
    small = CASES[:2]
    yield Portion(", ".join(case.name for case in small), _minutes(*small))
    for case in CASES[2:]:
        yield Portion(case.name, _minutes(case))


def _minutes(*cases: Case) -> float:
    """With some to spare: none is begun for which there is less time left."""
    return round(sum(case.takes_s for case in cases) / 60 + 0.05, 1)


STAGE = Stage(
    "suspend",
    "Suspending processes, and memory limits",
    tuple(_parts()),
    ("torch", "timm"),
    measure,
    blocks,
)

if __name__ == "__main__":
    child.serve([case.fact for case in CASES])
