"""The CARMA artifact's figures of its run heavy-60: what each of the four GPUs showed, and which
task that was. SMACT and power are smoothed by the authors over a minute; memory is in 1,000 MiB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf
from statistics import fmean, median

from lab.data import DATA, read

FIGURES = DATA / "carma" / "figures_heavy60.csv"
TASKS = "carma/heavy60_tasks.csv"
SUBMISSIONS = "carma/heavy60.csv"
IDLE_GB = 1.0  # less than any task of the run takes
STEP_GB = 0.5  # a change of memory between two readings that is more than one task's own
NEAR_GB = 0.3  # how far a plateau may be from the memory of its task
STEP_S = 39.53  # between two readings
BLURRED_S = 100.0  # on either side of a change of tasks
SMOOTHED = 3  # readings, likewise
LIGHT_GB = 3.0


@dataclass(frozen=True, slots=True)
class Reading:
    gpu: str
    at: float  # s
    smact: float | None  # None: these curves end before that of memory
    power_w: float | None
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Plateau:
    """Memory stays as it is: one task, alone on the GPU."""

    gpu: str
    begin: float
    end: float
    memory_gb: float
    busy_s: float  # SMACT over time, with half of what is blurred before and after it


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run as its figures show it."""

    makespan_s: float
    smact: float  # mean over GPUs and time
    energy_mj: float


def readings(run: str) -> list[Reading]:
    return [
        Reading(
            row["gpu"],
            float(row["seconds"]),
            float(row["smact"]) if row["smact"] else None,
            float(row["power_w"]) if row["power_w"] else None,
            float(row["memory_gb"]),
        )
        for row in read(FIGURES)
        if row["run"] == run
    ]


def whole(run: str) -> Run:
    """Up to where the curves of SMACT and power end."""
    shown = [reading for reading in readings(run) if reading.smact is not None]
    end = max(reading.at for reading in shown)
    gpus = len({reading.gpu for reading in shown})
    power_w = gpus * fmean(reading.power_w or 0.0 for reading in shown)
    return Run(end, fmean(reading.smact or 0.0 for reading in shown), power_w * end / 1e6)


def power_by_smact() -> list[tuple[float, float]]:
    """SMACT and power, medians of readings that the smoothing does not mix: on plateaus, by steps
    of SMACT; at rest; and of the only light task, whose plateaus are too short for that."""
    shown = readings("exclusive")
    inner = [
        (each.smact or 0.0, each.power_w or 0.0)
        for _, curve in groupby(shown, key=lambda reading: reading.gpu)
        for part in _between_steps(list(curve))
        for each in (part if part[0].memory_gb < LIGHT_GB else part[SMOOTHED:-SMOOTHED])
    ]
    points = []
    for low, high in pairwise((-0.01, 0.03, 0.08, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)):
        within = [pair for pair in inner if low < pair[0] <= high]
        points.append((median(pair[0] for pair in within), median(pair[1] for pair in within)))
    return points


def busy_seconds() -> dict[str, list[float]]:
    """SM-busy seconds of every run of each task, per GPU, in the exclusive run. It is FIFO: the
    tasks' plateaus begin in the order of their submission. Memory, too, has to be the task's."""
    plateaus = sorted(_plateaus(readings("exclusive")), key=lambda plateau: plateau.begin)
    tasks = {row["task"]: row for row in read(TASKS)}
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for row in read(SUBMISSIONS):
        task = tasks[row["task"]]
        count, memory_gb = int(task["gpus"]), float(task["memory_gb"])
        while abs(fmean(each.memory_gb for each in plateaus[:count]) - memory_gb) > NEAR_GB:
            plateaus.pop(0)  # not a task: a change of tasks, blurred
        found[row["task"]].append(fmean(each.busy_s for each in plateaus[:count]))
        del plateaus[:count]
    return found


def _plateaus(shown: Sequence[Reading]) -> Iterator[Plateau]:
    for gpu, curve in groupby(shown, key=lambda reading: reading.gpu):
        every = list(curve)
        flat = [
            (part[0].at, part[-1].at, fmean(each.memory_gb for each in part))
            for part in _between_steps(every)
            if len(part) > 1 and min(each.memory_gb for each in part) > IDLE_GB
        ]
        for begin, end, memory_gb in flat:
            first = max([(begin + other) / 2 for _, other, _ in flat if other < begin] or [0.0])
            last = min([(end + other) / 2 for other, _, _ in flat if other > end] or [inf])
            busy_s = sum(
                STEP_S * (each.smact or 0.0)
                for each in every
                if max(first, begin - BLURRED_S) < each.at <= min(last, end + BLURRED_S)
            )
            yield Plateau(gpu, begin, end, memory_gb, busy_s)


def _between_steps(curve: list[Reading]) -> Iterator[list[Reading]]:
    part = curve[:1]
    for before, reading in pairwise(curve):
        if abs(reading.memory_gb - before.memory_gb) > STEP_GB:
            yield part
            part = []
        part.append(reading)
    yield part
