"""The simulator of Lucid's authors beside ours, on the same samples of Philly's week.

`--clone` is a clone of https://github.com/S-Lab-System-Group/Lucid. Theirs runs as it is, in a copy
to which the jobs are added in its own format; `--python` runs it, and needs pandas.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.harness import Report, columns, markdown_table
from carma_simulator.experiment import Task
from carmad.config import Profiling
from lab.data import DATA
from lab.lucid import runs
from lab.lucid.runs import BUSY, HOUR, PREEMPTION_S, Case, Given, Known, cluster, settings
from lab.lucid.workload import ALONE, TEST, pairs, sample
from lab.main import main

POLICIES = ("fifo", "sjf", "tiresias", "lucid")
PLACERS = ("consolidate", "random")  # hard consolidation, and any idle GPUs
SCATTERED = ("fifo", "sjf")  # which of theirs run with the second, too
# Their profiler's for Philly: two nodes of eight GPUs, 80 s, and jobs of up to four GPUs.
PROFILER_NODES = 2
PROFILER = Profiling(run_s=80.0, gpus=16, largest=4)
KNOWS: Mapping[str, Known] = {"sjf": "truth", "lucid": "truth"}
THEIRS, SCATTERING = "theirs", "theirs, scattering"
OURS, CONSOLIDATED = "ours", "ours, consolidated"
REPOSITORY = "https://github.com/S-Lab-System-Group/Lucid"
CLONE = "../Lucid"
FIRST = datetime.fromisoformat(TEST)
VENUS = "estimator/ebm/Venus_Sept_ebm_weekly_updated.csv"
VENUS_LOG = "data/Venus/cluster_full_log.csv"
LOG = (
    "user", "vc", "job_id", "gpu_num", "state", "submit_time", "duration",
    "model", "dataset", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem",
)  # fmt: skip

NOTES = f"""\
Both simulate the same jobs, which draw their models as in `lab.lucid`, on the same nodes; sjf and
lucid know the durations. Lucid has two nodes more, which only profile, for 80 s and jobs of up to
4 GPUs, as their simulator has it for Philly. A job of theirs begins at once, ours after 10 s; a
preemption costs theirs 40 or 60 s, ours {PREEMPTION_S:.0f} s. Theirs consolidates: a job of up to
8 GPUs waits for them on one node, a larger one for whole nodes. So does ours where it says so;
`theirs, scattering` is their placer that takes any idle GPUs."""


@dataclass(frozen=True, slots=True)
class Run:
    """Means over jobs, in hours."""

    sample: int
    policy: str
    whose: str
    jobs: int
    jct: float
    queue: float


def measure(clone: str = CLONE, samples: int = 4, python: str = sys.executable) -> Report:
    simulation = Path(clone) / "simulation"
    if not (simulation / "simulator.py").exists():
        sys.exit(f"no clone is at {clone}: git clone {REPOSITORY} {clone}")
    found = []
    with TemporaryDirectory() as directory:
        runs._take(Given({}, pairs(Path(directory))))
        for number in range(samples):
            for one in chain(_theirs(simulation, Path(directory), number, python), _ours(number)):
                print(one, file=sys.stderr)
                found.append(one)
    return report(found, predictions(simulation))


# -- ours


def _ours(number: int) -> Iterator[Run]:
    for policy in POLICIES:
        made = settings(policy, PROFILER) if policy == "lucid" else settings(policy)
        case = Case(
            "",
            policy,
            f"philly {TEST} {number} median",
            _gpus(policy, number),
            made,
            KNOWS.get(policy, "nothing"),
        )
        for whose, its in ((OURS, case), (CONSOLIDATED, replace(case, consolidated=True))):
            result = runs.run(its)
            yield Run(number, policy, whose, result.finished, result.jct, result.queue)


def _nodes(policy: str, number: int) -> int:
    return int(cluster(number, BUSY).partition("x")[0]) + PROFILER_NODES * (policy == "lucid")


def _gpus(policy: str, number: int) -> str:
    return f"{_nodes(policy, number)}x{cluster(number, BUSY).partition('x')[2]}"


# -- theirs


def _theirs(simulation: Path, directory: Path, number: int, python: str) -> Iterator[Run]:
    tree = directory / f"theirs-{number}"
    shutil.copytree(simulation, tree)
    add_trace(tree, sample(TEST, number).tasks)
    for policy in POLICIES:
        (tree / "data/Philly/vc_config.csv").write_text(f",num\nphilly,{_nodes(policy, number)}\n")
        for placer in PLACERS[: 1 + (policy in SCATTERED)]:
            rows = simulate(tree, policy, placer, python)
            jct, queue = (
                fmean(float(row[name]) / HOUR for row in rows) for name in ("jct", "queue")
            )
            whose = THEIRS if placer == PLACERS[0] else SCATTERING
            yield Run(number, policy, whose, len(rows), jct, queue)
    shutil.rmtree(tree)


def add_trace(tree: Path, tasks: Iterable[Task]) -> None:
    """Write the jobs, their durations as predictions, and a throughput that nobody uses. Times are
    rounded to seconds: theirs compares them with whole ones."""
    profiles = {
        (f"{row['model']} amp" if int(row["amp"]) else row["model"], int(row["batchsize"])): row
        for row in _rows(ALONE)
    }
    jobs, predicted = [], []
    for task in tasks:
        submitted = FIRST + timedelta(seconds=round(task.submit_s))
        duration_s = max(1, round(task.duration_s))
        row = dict(profiles[task.load.model, task.load.batch_size])
        row |= {"user": task.user, "vc": "philly", "job_id": task.name, "state": "Pass"}
        row |= {"gpu_num": str(task.gpus), "submit_time": submitted.isoformat(" ")}
        jobs.append(row | {"duration": str(duration_s)})
        predicted.append({"job_id": task.name, "priority": str(duration_s)})
    _write(tree / "data/Philly/cluster_full_log.csv", LOG, jobs)
    for model in ("ebm", "lgb"):
        _write(tree / f"estimator/{model}/Philly_{model}.csv", ("job_id", "priority"), predicted)
    forecast = {"time": FIRST.isoformat(" "), "pred_gpu_job": "10", "pred_gpu_num": "10"}
    _write(tree / "predictor/Philly_throughput_pred.csv", tuple(forecast), [forecast])
    if find_spec("tkinter") is None:  # theirs imports it, and uses nothing of it
        (tree / "tkinter").mkdir()
        (tree / "tkinter/__init__.py").touch()
        (tree / "tkinter/messagebox.py").write_text('NO = "no"\n')


def simulate(tree: Path, policy: str, placer: str, python: str) -> list[dict[str, str]]:
    """What theirs logs of each job. It may fail afterwards, where it looks for the results of
    `consolidate` whichever the placer is."""
    log = f"log-{policy}-{placer}"
    words = [python, "simulator.py", "-e", "Philly", "-t", "./data/Philly", "-l", log]
    ended = subprocess.run(
        [*words, "-s", policy, "-p", placer],
        cwd=tree,
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        text=True,
    )
    found = tree / log / "Philly/all" / f"{policy}_{placer}_all_log.csv"
    if not found.exists():
        sys.exit(f"their simulator failed:\n{ended.stderr[-2000:]}")
    return list(_rows(found))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _write(path: Path, names: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        written = csv.DictWriter(file, names, extrasaction="ignore")
        written.writeheader()
        written.writerows(rows)


# -- their predictions of Venus, beside the log


@dataclass(frozen=True, slots=True)
class Predictions:
    jobs: int
    negative: int  # of less than nothing
    known: int  # whose duration is in the log
    r2: float | None  # of those; None: no log


def predictions(simulation: Path) -> Predictions:
    """The published predictions for September, in seconds, beside the published durations."""
    foretold = {row["job_id"]: float(row["priority"]) for row in _rows(simulation / VENUS)}
    log = simulation / VENUS_LOG
    both = [
        (foretold[row["job_id"]], float(row["duration"]))
        for row in (_rows(log) if log.exists() else ())
        if row["job_id"] in foretold
    ]
    r2 = None
    if both:
        mean = fmean(real for _, real in both)
        r2 = 1 - sum((p - d) ** 2 for p, d in both) / sum((d - mean) ** 2 for _, d in both)
    return Predictions(len(foretold), sum(p < 0 for p in foretold.values()), len(both), r2)


# -- the page


def report(found: Sequence[Run], venus: Predictions) -> Report:
    return Report(
        "The simulator of Lucid's authors beside ours",
        [
            NOTES,
            _side_by_side(found),
            "## How many times as long as under Lucid (JCT)",
            _against_lucid(found),
            "## Venus",
            _describe(venus),
        ],
        {"runs": found, "venus": venus},
    )


def _side_by_side(found: Sequence[Run]) -> str:
    alike: dict[tuple[int, str], dict[str, Run]] = {}
    for one in found:
        alike.setdefault((one.sample, one.policy), {})[one.whose] = one
    sides = (THEIRS, CONSOLIDATED, OURS, SCATTERING)

    def told(its: Mapping[str, Run], whose: str, figure: str) -> str:
        return f"{getattr(its[whose], figure):.2f}" if whose in its else ""

    rows = [
        (
            f"{number}",
            policy,
            *(told(its, whose, figure) for figure in ("jct", "queue") for whose in sides),
        )
        for (number, policy), its in alike.items()
    ]
    headings = [f"{what} h, {whose}" for what in ("JCT", "queue") for whose in sides]
    return markdown_table(("sample", "", *headings), rows, range(2, 10))


def _against_lucid(found: Sequence[Run]) -> str:
    jct = {(one.sample, one.policy, one.whose): one.jct for one in found}
    rows = [
        (number, policy, *(jct[number, policy, w] / jct[number, "lucid", w] for w in _SIDES))
        for number in sorted({one.sample for one in found})
        for policy in POLICIES[:-1]
    ]
    return columns(
        rows,
        ("sample", "{0[0]}"),
        ("", "{0[1]}"),
        *((whose, f"{{0[{n}]:.2f}}") for n, whose in enumerate(_SIDES, 2)),
        text=(0, 1),
    )


_SIDES = (THEIRS, CONSOLIDATED, OURS)


def _describe(venus: Predictions) -> str:
    text = (
        "Their repository has the log of Venus' jobs (users, GPUs, durations and drawn models) and"
        f" predictions for {venus.jobs:,} of them in September; {venus.negative:,} of these are"
        " less than 0 s, which their simulator takes as 1,000 s."
    )
    if venus.r2 is None:
        return f"{text} The log is not in this clone, so the predictions are not judged."
    return f"{text} R² of {venus.known:,} predictions: {venus.r2:.3f} (paper: 0.413)."


if __name__ == "__main__":
    main("lucid_authors", measure, DATA)
