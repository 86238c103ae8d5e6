"""200 jobs on four nodes with two GPUs each: Slurm with exclusive GPUs, with shards (also with what
failed submitted again), and with CARMA on its nodes. With `--faults`, the first and the last of
them while each daemon is killed in turn and a node is lost. With `--ends`, how soon a node's carmad
knows that Slurm ended a job. `--compressed 90` runs the trace once, a tenth as fast as usual.

A real Slurm (Debian: slurmctld slurmd slurm-client munge) is all on this machine, the GPUs are
emulated. As root. Everybody says how much memory a job needs, and knows it. Takes twenty minutes
each, but for the last; nothing is left behind. The machine should be idle: see the last column.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import getdoc
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Report, columns
from lab.main import main
from lab.slurm import ends as of_slurm
from lab.slurm.faults import all_of_them
from lab.slurm.runs import COMPRESSED, Ran, ratio, run
from lab.slurm.ways import WAYS, Exclusive, Way, WithCarma
from tests.extras.carma_slurm import slurm

SEEDS = 5
JOBS = 200
COUNTS = {
    "lost": "lost",
    "failed": "failed",
    "run again": "reruns",
    "ended twice": "doubled",
    "held": "held",
}


def measure(
    seeds: int = SEEDS,
    jobs: int = JOBS,
    faults: bool = False,
    ends: bool = False,
    compressed: float = COMPRESSED,
) -> Report:
    if missing := slurm.missing():
        sys.exit(
            f"this needs {', '.join(missing)}: apt install slurmctld slurmd slurm-client munge"
        )
    if ends:
        with _folder() as folder:
            seen = of_slurm.measured(folder)
        data = {"ends": [asdict(each) for each in seen]}
        title = "How soon CARMA knows that Slurm ended a job"
        return Report(title, (of_slurm.table(seen),), data, name="slurm_ends")
    ways, meanwhile = ((Exclusive, WithCarma), all_of_them) if faults else (WAYS, None)
    if slow := compressed != COMPRESSED:
        seeds = 1
    found = [
        _ran(way, seed, jobs, meanwhile, compressed) for seed in range(1, seeds + 1) for way in ways
    ]
    data = {"runs": [asdict(each) for each in found]}
    title = f"Slurm alone and with CARMA: {jobs} jobs, {seeds} seeds"
    if slow:
        title, name = f"{title}, compressed {compressed:g} times", f"slurm_{compressed:g}"
        return Report(title, (_table(found),), data, name=name, kept=jobs == JOBS)
    kept = (seeds, jobs) == (SEEDS, JOBS)
    if faults:
        blocks = (getdoc(all_of_them) or "", _faults(found))
        return Report(f"{title}, with faults", blocks, data, name="slurm_faults", kept=kept)
    return Report(title, (_table(found),), data, kept=kept)


def _ran(
    kind: type[Way],
    seed: int,
    jobs: int,
    meanwhile: Callable[[Any], None] | None,
    compressed: float,
) -> Ran:
    with _folder() as folder:
        ran = run(kind(folder), seed, jobs, meanwhile, compressed)
    print(ran, file=sys.stderr, flush=True)
    return ran


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carma-slurm-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _table(found: list[Ran]) -> str:
    first = [each for each in found if each.way == WAYS[0].name]
    rows = []
    for way in WAYS:
        runs = [each for each in found if each.way == way.name]
        spans, waits = [each.makespan_s for each in runs], [each.jct_s for each in runs]
        rows.append(
            (
                way.name,
                _spread(spans, "s"),
                f"{ratio(spans, [each.makespan_s for each in first]):.2f}",
                _spread(waits, "s"),
                f"{ratio(waits, [each.jct_s for each in first]):.2f}",
                *(sum(getattr(each, field) for each in runs) for field in COUNTS.values()),
                f"{median(each.busy for each in runs):.0%}",
            )
        )
    heads = ("", "makespan", "ratio", "mean JCT", "ratio", *COUNTS, "cores busy")
    return columns(rows, *((head, f"{{0[{n}]}}") for n, head in enumerate(heads)))


def _faults(found: list[Ran]) -> str:
    counts = ((name, f"{{0.{field}}}") for name, field in COUNTS.items())
    rows = sorted(found, key=lambda each: each.way)
    return columns(rows, ("", "{0.way}"), ("seed", "{0.seed}"), ("jobs", "{0.jobs}"), *counts)


def _spread(values: list[float], unit: str) -> str:
    return f"{median(values):.1f} {unit} ({min(values):.1f}–{max(values):.1f})"


if __name__ == "__main__":
    main("slurm", measure)
