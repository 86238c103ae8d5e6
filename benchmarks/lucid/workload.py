"""What `benchmarks.lucid` simulates: Philly's weeks with the jobs of Lucid's table 1, the speeds of
measured pairs, and models trained on the weeks afterwards.

Lucid (4.1) lets long jobs on many GPUs more likely be large models, by "hierarchical sampling" that
it does not describe. Here: the configurations that its authors measured, in thirds by how busy they
keep a GPU; jobs are put in the order of their GPU time and draw a third by their place, then a
configuration (`carmad.sim.traces.assign`, whose shares of 30, 60 and 10 % are CARMA's).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean
from typing import get_args

from benchmarks.harness.data import DATA
from carmad.gpu.source import utilization
from carmad.learning import duration, throughput
from carmad.learning.additive import Origin
from carmad.models import Model
from carmad.sim.catalogue import Profile, Size, activity
from carmad.sim.task import Load, Task, Trace
from carmad.sim.traces import muri, philly
from carmad.sim.traces.assign import assign
from carmad.sim.traces.rows import ordered, read_rows

PHILLY = DATA / "philly" / "philly.csv"
ALONE = DATA / "lucid" / "single_job_profiles_rtx3090.csv"
PAIRS = DATA / "lucid" / "colocated_pairs_rtx3090.csv"
MURI_JOBS = 2_000
DAY_S = 86_400.0
BIN_S = 600
TEST, BEFORE = "2017-10-01", "2017-09-24"  # the paper's week, and the one that knobs are tuned on
# The paper trains on October to December (4.1); here it is the fortnight after the week, with some
# 26,000 jobs, for the time that training takes.
AFTER, AFTER_DAYS = "2017-10-08", 14

SIZES: tuple[Size, ...] = get_args(Size)

Models = tuple[tuple[str, Model], ...]


def week(first_day: str, seed: int = 0) -> Trace:
    begin = _moment(first_day)
    tasks = [task for task in _philly(seed) if 0 <= task.submit_s - begin < 7 * DAY_S]
    return ordered(f"philly-{first_day}", tasks)


def nearest_week(jobs: int, mean_s: float) -> Trace:
    """The one from a midnight on that has most nearly so many jobs of such a mean duration."""
    days = {datetime.fromtimestamp(t.submit_s, UTC).date() for t in _philly(0)}
    weeks = [week(day.isoformat()) for day in sorted(days)]

    def apart(trace: Trace) -> float:
        found = (len(trace.tasks) / jobs, mean_duration(trace) / mean_s)
        return sum(abs(log(ratio)) for ratio in found)

    return min(weeks, key=apart)


def mean_duration(trace: Trace) -> float:
    return fmean(task.duration_s for task in trace.tasks)


def load(trace: Trace, gpus: int) -> float:
    """The week's GPU time, of what so many GPUs have in one."""
    return sum(task.gpus * task.duration_s for task in trace.tasks) / (gpus * 7 * DAY_S)


def muri_trace(number: int) -> Trace:
    """Its models are Muri's own. Of the longest, the first MURI_JOBS."""
    trace = muri.read(DATA / "muri" / f"trace{number}.csv")
    return replace(trace, tasks=trace.tasks[:MURI_JOBS])


def pairs(directory: Path) -> str:
    """The interference model of the measured pairs, in a file in which mixed precision is part of a
    model's name. Pairs that nobody measured slow down as `learned` has it."""
    path = directory / "pairs.csv"
    columns = ("model1", "batchsize1", "speed1", "model2", "batchsize2", "speed2")
    with path.open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(columns)
        for row in read_rows(PAIRS, (*columns, "amp1", "amp2")):
            names = {
                f"model{i}": _name(row.text(f"model{i}"), row.whole(f"amp{i}")) for i in (1, 2)
            }
            written.writerow([names.get(column) or row.text(column) for column in columns])
    return f"measured:{path}"


def busy(trace: Trace) -> tuple[float, float]:
    """NVML's utilisation that the jobs have alone: mean over jobs, and over GPU time."""
    shares = [utilization(t.load.sm_active, t.load.dram_active)[0] for t in trace.tasks]
    weights = [task.gpus * task.duration_s for task in trace.tasks]
    return fmean(shares), fmean(shares, weights)


def trained(*, profiled: bool, seed: int = 0) -> Models:
    """From the jobs after the test week, by the clock of its trace. `profiled`: with what a profile
    tells of each. The errors are on the test week, which is not learned from."""
    tasks, origin = _philly(seed), _moment(TEST)
    begin = next(task.submit_s for task in tasks if task.submit_s >= origin)
    after = _moment(AFTER)
    seen = [t for t in tasks if after <= t.submit_s < after + AFTER_DAYS * DAY_S]
    rows = [_row(task, begin, profiled) for task in seen]
    unseen = [_row(t, begin, profiled) for t in tasks if origin <= t.submit_s < after]
    source = Origin("seconds that a job runs", f"Philly, {AFTER_DAYS} days from {AFTER}", 0.0)
    judged, names = duration.fitted(rows, source)
    errors = duration.measured(judged, duration.table(unseen, names), unseen)
    first, counts = _bins(seen, begin)
    forecast = throughput.train(counts, first, "gpus", source.source, 0.0)
    return ("duration", replace(judged, errors=errors)), ("throughput", forecast)


def _row(task: Task, begin: float, profiled: bool) -> dict[str, object]:
    row: dict[str, object] = {
        "user": task.user,
        "name": "philly",  # the trace tells none
        "group": "",
        "gpus": task.gpus,
        "submitted_at": task.submit_s - begin,
        "duration_s": task.duration_s,
    }
    if profiled:
        gpu, memory = utilization(task.load.sm_active, task.load.dram_active)
        row |= {"gpu_utilization": gpu, "memory_utilization": memory}
        row["peak_mib"] = task.load.memory_mib
    return row


def _bins(tasks: Sequence[Task], begin: float) -> tuple[float, list[tuple[int, int]]]:
    """When the first ten minutes begin; the jobs and the GPUs asked for in them and all others."""
    first, last = (int((tasks[n].submit_s - begin) // BIN_S) for n in (0, -1))
    counts = [[0, 0] for _ in range(first, last + 1)]
    for task in tasks:
        found = counts[int((task.submit_s - begin) // BIN_S) - first]
        found[0] += 1
        found[1] += task.gpus
    return float(first * BIN_S), [(jobs, gpus) for jobs, gpus in counts]


@cache
def _philly(seed: int) -> tuple[Task, ...]:
    """All jobs, with `submit_s` in Unix seconds."""
    trace = philly.read(PHILLY)
    begin = min(row.moment("timestamp") for row in read_rows(PHILLY, ("timestamp",)))
    tasks = assign(trace, seed, _configurations()).tasks
    return tuple(replace(task, submit_s=task.submit_s + begin) for task in tasks)


def _configurations() -> list[Profile]:
    rows = sorted(
        read_rows(ALONE, ("model", "batchsize", "amp", "gpu_util", "gmem_util", "gmem", "dataset")),
        key=lambda row: row.number("gpu_util"),
    )
    found = []
    for place, row in enumerate(rows):
        sm, occupancy, dram = activity(row.number("gpu_util") / 100, row.number("gmem_util") / 100)
        load = Load(
            model=_name(row.text("model"), row.whole("amp")),
            batch_size=row.whole("batchsize"),
            memory_mib=round(row.number("gmem")),
            sm_active=sm,
            sm_occupancy=occupancy,
            dram_active=dram,
        )
        size = SIZES[3 * place // len(rows)]
        found.append(Profile(load, row.text("dataset"), 1, size, None, "Lucid artifact"))
    return found


def _name(model: str, amp: int) -> str:
    return f"{model} amp" if amp else model


def _moment(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
