"""What `lab.lucid` simulates: tenths of Philly's weeks with the jobs of Lucid's table 1, the
speeds of measured pairs, and models trained on the weeks afterwards.

Lucid (4.1) lets long jobs on many GPUs more likely be large models, by "hierarchical sampling" that
it does not describe. Here: the configurations that its authors measured, in thirds by how busy they
keep a GPU; jobs are put in the order of their GPU time and draw a third by their place, then a
configuration (`carma_simulator.traces.sources`, whose shares of 30, 60 and 10 % are CARMA's). Each
job has a name of its own, so that each is profiled, as in the paper's simulation.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

from carma_simulator.catalogue import Profile, Size, activity
from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.traces.public import philly
from carma_simulator.traces.rows import in_order, read_rows
from carma_simulator.traces.sources import assign
from carmad.gpu.source import utilization
from carmad.learning.models import Model
from carmad.learning.training import lucid
from carmad.learning.training.lucid import Origin
from lab.data import DATA
from lab.traces import muri

PHILLY = DATA / "philly" / "philly.csv"
ALONE = DATA / "lucid" / "single_job_profiles_rtx3090.csv"
PAIRS = DATA / "lucid" / "colocated_pairs_rtx3090.csv"
MURI_JOBS = 2_000
DAY_S = 86_400.0
BIN_S = 600
# Every PARTS-th job from the first, from the second …, each with a draw of its own: five tenths of
# the week, half of it. ASKED: the GPUs that each of them keeps busy within the week, on average.
PARTS, SAMPLES = 10, range(5)
ASKED = (51.9, 40.7, 28.4, 37.0, 31.3)
TEST, BEFORE = "2017-10-01", "2017-09-24"  # the paper's week, and the one that knobs are tuned on
# The paper trains on October to December (4.1); here it is the week after it, for the time that
# training takes.
AFTER, AFTER_DAYS = "2017-10-08", 7

SIZES: tuple[Size, ...] = get_args(Size)

Models = tuple[tuple[str, Model], ...]
Busy = Literal[
    "low", "median", "high"
]  # figure 12: which third of the configurations nobody trains
LEFT_OUT: dict[Busy, int | None] = {"low": 2, "median": None, "high": 0}


def week(first_day: str, seed: int = 0, busy: Busy = "median") -> Trace:
    return in_order(f"philly-{first_day}", _drawn(first_day, 7, seed, busy))


@cache
def sample(first_day: str, number: int, busy: Busy = "median") -> Trace:
    found = week(first_day, number, busy).tasks[number::PARTS]
    return in_order(f"philly-{first_day}-{number}", found)


def brief_week(first_day: str, longest_s: float, largest: int) -> Trace:
    """The jobs of at most `largest` GPUs, as if none ran for longer than `longest_s`."""
    found = [
        replace(task, duration_s=min(task.duration_s, longest_s))
        for task in week(first_day).tasks
        if task.gpus <= largest
    ]
    return in_order(f"philly-{first_day}-brief", found)


def nearest_week(jobs: int, mean_s: float) -> Trace:
    """The one from a midnight on that has most nearly so many jobs of such a mean duration."""
    days = {datetime.fromtimestamp(task.submit_s, UTC).date() for task in _philly()}
    weeks = [in_order(f"philly-{day}", _submitted(day.isoformat(), 7)) for day in sorted(days)]

    def apart(trace: Trace) -> float:
        found = (len(trace.tasks) / jobs, mean_duration(trace) / mean_s)
        return sum(abs(log(ratio)) for ratio in found)

    return min(weeks, key=apart)


def mean_duration(trace: Trace) -> float:
    return fmean(task.duration_s for task in trace.tasks)


def asked(tasks: Iterable[Task]) -> float:
    """GPUs that the jobs of a week keep busy within it, on average, if none waits."""
    left = ((task, 7 * DAY_S - task.submit_s) for task in tasks)
    return sum(task.gpus * min(task.duration_s, until) for task, until in left) / (7 * DAY_S)


def service_rate(gpus: float) -> float:
    """GPUs requested in ten minutes that keep so many GPUs just busy, by the week before."""
    tasks = week(BEFORE).tasks
    requested = sum(task.gpus for task in tasks) / (7 * DAY_S / BIN_S)
    return gpus * requested / asked(tasks)


def muri_trace(number: int) -> Trace:
    """Its models are Muri's own. Of the longest, the first MURI_JOBS."""
    trace = muri.read(DATA / "muri" / f"trace{number}.csv")
    return replace(trace, tasks=trace.tasks[:MURI_JOBS])


def pairs(directory: Path) -> str:
    """The interference model of the measured pairs, in a file in which mixed precision is part of a
    model's name. Pairs that nobody measured slow down as `conserving` has it."""
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
    seen, test = _drawn(AFTER, AFTER_DAYS, seed), _drawn(TEST, 7, seed)
    begin = test[0].submit_s
    rows = [_row(task, begin, profiled) for task in seen]
    unseen = [_row(task, begin, profiled) for task in test]
    source = Origin("seconds that a job runs", f"Philly, {AFTER_DAYS} days from {AFTER}", 0.0)
    judged, names = lucid.fit_jobs(rows, source)
    errors = lucid.measure_duration(judged, lucid.duration_table(unseen, names), unseen)
    first, counts = _bins(seen[::PARTS], begin)
    forecast = lucid.train_traffic(counts, first, "gpus", source.source, 0.0)
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


def _drawn(first_day: str, days: int, seed: int, busy: Busy = "median") -> list[Task]:
    """The jobs of these days in order, with models; `submit_s` is in Unix seconds."""
    named = [
        replace(task, name=f"philly-{n}") for n, task in enumerate(_submitted(first_day, days))
    ]
    return list(assign(Trace("", tuple(named)), seed, _configurations(busy)).tasks)


def _submitted(first_day: str, days: int) -> list[Task]:
    begin = _moment(first_day)
    return [task for task in _philly() if 0 <= task.submit_s - begin < days * DAY_S]


@cache
def _philly() -> tuple[Task, ...]:
    """All jobs, without models; `submit_s` is in Unix seconds."""
    begin = min(row.moment("timestamp") for row in read_rows(PHILLY, ("timestamp",)))
    return tuple(replace(task, submit_s=task.submit_s + begin) for task in philly(PHILLY).tasks)


def _configurations(busy: Busy) -> list[Profile]:
    """In thirds by utilisation; of those that are left if one third is left out."""
    columns = ("model", "batchsize", "amp", "gpu_util", "gmem_util", "gmem", "dataset")
    rows = sorted(read_rows(ALONE, columns), key=lambda row: row.number("gpu_util"))
    if (out := LEFT_OUT[busy]) is not None:
        rows = [row for place, row in enumerate(rows) if 3 * place // len(rows) != out]
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
