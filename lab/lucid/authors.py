"""The simulator of Lucid's authors beside ours, on Philly's whole week.

`--clone` is a clone of https://github.com/S-Lab-System-Group/Lucid. Theirs runs in a copy to which
the jobs are added in its own format; `--python` runs it, and needs pandas.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.harness import Report, columns
from carma_simulator.experiment import Task
from lab.data import DATA
from lab.lucid import runs
from lab.lucid.runs import HOUR, PREEMPTION_S, Case, Given, Known, settings
from lab.lucid.weeks import GPUS, THEIR_PROFILER
from lab.lucid.workload import ALONE, TEST, pairs, week
from lab.main import main

POLICIES = ("fifo", "sjf", "tiresias", "lucid")
KNOWS: Mapping[str, Known] = {"sjf": "truth", "lucid": "truth"}
THEIRS, OURS = "theirs", "ours"
REPOSITORY = "https://github.com/S-Lab-System-Group/Lucid"
CLONE = "../Lucid"
FIRST = datetime.fromisoformat(TEST)
VENUS = "estimator/ebm/Venus_Sept_ebm_weekly_updated.csv"
VENUS_LOG = "data/Venus/cluster_full_log.csv"
LOG = (
    "user", "vc", "job_id", "gpu_num", "state", "submit_time", "duration",
    "model", "dataset", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem",
)  # fmt: skip
# Theirs looks at each job in line every second, which takes hours with a thousand of them. What it
# decides is the same if it only looks where something has changed, and keeps fewer samples.
HASTENED = (
    ("policy/lucid.py", "            new_job_num = 0\n", "            ended = self.end_job_num\n"),
    (
        "policy/lucid.py",
        "            que_ls = self.que_list.copy()\n",
        "            same = self.time and not new_job_num and ended == self.end_job_num and still\n"
        "            que_ls = [] if same else que_ls\n"
        "            running = len(self.run_list)\n",
    ),
    (
        "policy/lucid.py",
        '            """Echo Profiler Scaling"""\n',
        "            still = running == len(self.run_list)\n",
    ),
    (
        "policy/policy.py",
        "    def seq_recorder(self):\n",
        "        if self.time % 3600:\n            return\n",
    ),
)

NOTES = f"""\
Both simulate the same jobs, which draw their models as in `lab.lucid.weeks` (its first draw), on
the same 344 GPUs; sjf and lucid know the durations. Two of Lucid's nodes only profile, for 80 s and
jobs of up to 4 GPUs, as their simulator has it for Philly. A job of theirs begins at once, ours
after 10 s; a preemption costs theirs 40 or 60 s, ours {PREEMPTION_S:.0f} s. Theirs has the labels
that its authors gave by hand, and no guard on utilisation; beside BERT, ResNet-50, Transformer and
NeuMF nobody slows down. Both consolidate: a job of up to 8 GPUs waits for them on one node, a
larger one for whole nodes."""


@dataclass(frozen=True, slots=True)
class Run:
    """Means over jobs, in hours."""

    policy: str
    whose: str
    jobs: int
    jct: float
    queue: float


def measure(clone: str = CLONE, python: str = sys.executable) -> Report:
    simulation = Path(clone) / "simulation"
    if not (simulation / "simulator.py").exists():
        sys.exit(f"no clone is at {clone}: git clone {REPOSITORY} {clone}")
    found = []
    with TemporaryDirectory() as directory:
        runs._take(Given({}, pairs(Path(directory))))
        for one in chain(_theirs(simulation, Path(directory), python), _ours()):
            print(one, file=sys.stderr)
            found.append(one)
    return report(found, predictions(simulation))


# -- ours


def _ours() -> Iterator[Run]:
    for policy in POLICIES:
        made, knows = settings(policy, THEIR_PROFILER), KNOWS.get(policy, "nothing")
        case = Case("", policy, f"week {TEST} 0 median", GPUS, made, knows, consolidated=True)
        result = runs.run(case)
        yield Run(policy, OURS, result.finished, result.jct, result.queue)


# -- theirs


def _theirs(simulation: Path, directory: Path, python: str) -> Iterator[Run]:
    tree = directory / "theirs"
    shutil.copytree(simulation, tree)
    hasten(tree)
    add_trace(tree, week(TEST).tasks)
    (tree / "data/Philly/vc_config.csv").write_text(f",num\nphilly,{GPUS.partition('x')[0]}\n")
    for policy in POLICIES:
        rows = simulate(tree, policy, python)
        jct, queue = (fmean(float(row[name]) / HOUR for row in rows) for name in ("jct", "queue"))
        yield Run(policy, THEIRS, len(rows), jct, queue)


def hasten(tree: Path) -> None:
    """Add lines to their simulator, each behind one that is there once."""
    for path, line, added in HASTENED:
        text = (tree / path).read_text()
        if text.count(line) != 1:
            sys.exit(f"{path} of their simulator has changed")
        (tree / path).write_text(text.replace(line, line + added))


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


def simulate(tree: Path, policy: str, python: str) -> list[dict[str, str]]:
    """What theirs logs of each job."""
    log = f"log-{policy}"
    words = [python, "simulator.py", "-e", "Philly", "-t", "./data/Philly", "-l", log]
    ended = subprocess.run(
        [*words, "-s", policy],
        cwd=tree,
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        text=True,
    )
    found = tree / log / "Philly/all" / f"{policy}_consolidate_all_log.csv"
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
    sides = (THEIRS, OURS)
    by_policy = {
        policy: {one.whose: one for one in found if one.policy == policy} for policy in POLICIES
    }
    table = columns(
        list(by_policy),
        ("", "{}"),
        *(
            (f"{what} h, {whose}", lambda policy, f=figure, w=whose: f(by_policy[policy][w]))
            for what, figure in (
                ("JCT", lambda one: f"{one.jct:.2f}"),
                ("queue", lambda one: f"{one.queue:.2f}"),
            )
            for whose in sides
        ),
    )
    return Report(
        "The simulator of Lucid's authors beside ours",
        [NOTES, table, "## Venus", _describe(venus)],
        {"runs": found, "venus": venus},
    )


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
