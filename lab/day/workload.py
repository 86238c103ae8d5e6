"""Draws the day's jobs: when who submits what, and what it really needs.

Arrivals follow the order statistics of a public trace (Sia's philly-workload-1), memory and load of
trainings the tasks of the CARMA paper, durations the ranks of Philly's jobs; a day of 23 minutes is
played at 0.35 of its length, and keeps the order in which they are drawn: a seed names a day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

from carma_simulator.experiment import Load, Task, Trace
from lab.data import DATA, read

ARRIVALS = "sia/workloads/philly-workload-1.csv"
SHAPES = "carma/heavy60_tasks.csv"
DURATIONS = "philly/philly.csv"
NEEDS = DATA / DURATIONS

SCALE, DAY_S = 0.35, 480.0
SEED = 7  # of the day that was looked at while CARMA was made; another seed is another day
GIB = 1024
MEMORY_MIB = 40_000  # of a GPU that jobs can have, nearly
GROWTHS = 4  # of a leak, before it ends
HUNG_SHARE = 4  # what hangs holds a quarter of its memory
SETS_UP_S = 1.5  # from the start of a job to its first kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Memory in MiB per GPU, times in seconds; `load` is SMACT, `copies` tasks of one array."""

    at_s: float
    user: str
    name: str
    kind: str
    memory_mib: int
    load: float
    run_s: float
    dram: float
    gpus: int = 1
    declared_mib: int | None = None
    limit_min: int | None = None
    growth_mib: int = 0
    copies: int | None = None
    cancelled_at_s: float | None = None
    order: int = field(default=0, compare=False)  # in which it was drawn

    @property
    def uses_mib(self) -> int:
        """At its peak."""
        if self.is_hung:
            return self.memory_mib // HUNG_SHARE
        return self.memory_mib + GROWTHS * self.growth_mib

    @property
    def needs_mib(self) -> int:
        """What has to be free for it, with what its user declared."""
        return max(self.declared_mib or 0, self.uses_mib if self.is_hung else self.memory_mib)

    @property
    def is_hung(self) -> bool:
        return self.kind == "hang"

    @property
    def is_counted(self) -> bool:
        """Whether its wait counts: nobody waits for what hangs, or is cancelled."""
        return self.kind not in ("hang", "cancelled", "interactive")


def draw_day(seed: int = SEED) -> tuple[Submission, ...]:
    """In order of submission."""
    drawn = [replace(each, order=n) for n, each in enumerate(_draw(Random(seed)))]
    return tuple(sorted(drawn, key=lambda each: each.at_s))


@cache
def _arrivals() -> tuple[float, ...]:
    times = sorted(float(row["time"]) for row in read(ARRIVALS))
    first, last = times[0], times[-1]
    return tuple((time - first) / (last - first) * DAY_S for time in times)


@cache
def _shapes() -> tuple[tuple[str, float, float], ...]:
    rows = ((row["model"], float(row["memory_gb"]), float(row["smact"])) for row in read(SHAPES))
    return tuple(
        (model, memory_gb * GIB, load)
        for model, memory_gb, load in rows
        if 8 <= memory_gb <= 20 and 0.45 <= load <= 0.95
    )


@cache
def _durations() -> tuple[float, ...]:
    alone = sorted(float(row["duration"]) for row in read(DURATIONS) if row["num_gpus"] == "1")
    return tuple(run_s for run_s in alone if 600 < run_s < 20_000)


def _draw(random: Random) -> Iterator[Submission]:
    free = list(_arrivals())
    random.shuffle(free)

    def arrive() -> float:
        return max(0.0, free.pop())

    def train_s() -> float:
        """One to four minutes, by the rank of a duration."""
        band = _durations()
        return (60 + 180 * band.index(random.choice(band)) / len(band)) * SCALE

    for _ in range(36):
        user = random.choice(("cleo", "cleo", "dan", "ada", "finn", "bob"))
        memory = random.uniform(2, 6) * GIB
        at, load = arrive(), random.uniform(0.3, 0.5)
        run_s = random.uniform(10, 30) * SCALE
        declared = 8192 if random.random() < 0.4 else None
        yield _job(at, user, "debug", "debug", memory, load, run_s, declared_mib=declared)
    yield _job(
        20, "bob", "sweep-lr", "sweep", 4.5 * GIB, 0.3, 55 * SCALE, copies=20, declared_mib=6144
    )
    yield _job(110, "bob", "sweep-seed", "sweep", 5.5 * GIB, 0.3, 45 * SCALE, copies=30)
    yield _job(
        240, "cleo", "sweep-aug", "sweep", 3.5 * GIB, 0.3, 60 * SCALE, copies=16, declared_mib=5120
    )
    wrong = _job(180, "finn", "sweep-wrong", "cancelled", 8 * GIB, 0.4, 80 * SCALE, copies=12)
    yield replace(wrong, cancelled_at_s=215.0)
    yield from _trainings(random, arrive, train_s)
    for n, user in enumerate(("eve", "dan", "eve", "ada", "eve")):
        model, memory, load = random.choice(_shapes())
        declared = int(memory * 1.1) if n % 2 else None
        at = arrive()
        yield _job(
            at,
            user,
            f"ddp2-{model}",
            "2gpu",
            memory,
            load,
            train_s(),
            gpus=2,
            declared_mib=declared,
        )
    for n, at in enumerate((90, 230, 350)):
        run_s, declared = random.uniform(80, 130) * SCALE, 18 * GIB if n != 1 else None
        yield _job(
            at,
            "eve",
            f"ddp4-{n}",
            "4gpu",
            16 * GIB,
            0.75,
            run_s,
            gpus=4,
            declared_mib=declared,
            limit_min=2 if n == 2 else None,
        )
    for n, (at, user) in enumerate(((5, "ada"), (60, "ada"), (200, "dan"), (300, "ada"))):
        run_s, declared = random.uniform(480, 600) * SCALE, None if n % 2 else 32 * GIB
        yield _job(at, user, f"llm-{n}", "long", 30 * GIB, 0.9, run_s, declared_mib=declared)
    yield replace(_job(70, "dan", "hang", "hang", 24_000, 0, 180), cancelled_at_s=250.0)
    yield _job(280, "ada", "hang-limit", "hang", 24_000, 0, 60, limit_min=1)
    for n, (gib, at) in enumerate(((15, 100), (19, 190), (22, 330))):
        yield _job(
            at, "finn", f"wrong-{n}", "wrong", gib * GIB, 0.6, 100 * SCALE, declared_mib=4096
        )
    for n, (gib, at) in enumerate(((24, 130), (29, 220), (34, 310))):
        yield _job(at, "finn", f"unknown-{n}", "unknown", gib * GIB, 0.5, 110 * SCALE)
    for n, at in enumerate((160, 290)):
        yield _job(at, "finn", f"leak-{n}", "leak", 8 * GIB, 0.5, 120 * SCALE, growth_mib=2600)
    yield _job(
        150, "cleo", "notebook", "interactive", 9000, 0.4, 45, dram=0.16, declared_mib=10_240
    )


def _trainings(
    random: Random, arrive: Callable[[], float], train_s: Callable[[], float]
) -> Iterator[Submission]:
    """26 of 8 configurations, each several times, so that some have a history. `stated`: what of
    its memory its user declares."""
    users = ("dan", "ada", "eve", "finn", "dan", "cleo", "dan", "bob")
    stated = (1.1, None, None, 1.2, None, 1.1, math.inf, None)
    kinds: list[Submission] = []
    for n, (user, factor) in enumerate(zip(users, stated, strict=True)):
        model, memory, load = random.choice(_shapes())
        declared = 36 * GIB if factor == math.inf else factor and int(memory * factor)
        run_s = train_s()
        kinds.append(
            _job(0, user, f"{model}-{n}", "medium", memory, load, run_s, declared_mib=declared)
        )
    for n in range(26):
        kind = kinds[n % 8]
        limit = int(kind.run_s * 2.5 / 60) + 1 if n in (2, 9, 17, 24) else None
        yield replace(kind, at_s=round(arrive(), 2), limit_min=limit)


def _job(
    at: float,
    user: str,
    name: str,
    kind: str,
    memory: float,
    load: float,
    run_s: float,
    *,
    dram: float | None = None,
    **more: Any,
) -> Submission:
    if dram is None:
        dram = 0.45 if load >= 0.85 else round(0.4 * load, 2)
    return Submission(
        at_s=round(at, 2),
        user=user,
        name=name,
        kind=kind,
        memory_mib=int(memory),
        load=round(load, 2),
        run_s=round(run_s, 1),
        dram=dram,
        **more,
    )


def as_trace(day: Iterable[Submission]) -> Trace:
    """The day for the simulator, which cannot cancel: without what is cancelled but for the hang,
    which ends when it is cancelled."""
    tasks = [
        _task(each) for each in day if each.kind != "cancelled" for _ in range(each.copies or 1)
    ]
    return Trace("a lab's day", tuple(tasks))


def _task(job: Submission) -> Task:
    return Task(
        name=job.name,
        submit_s=job.at_s,
        duration_s=job.run_s,
        gpus=job.gpus,
        user=job.user,
        load=Load(
            memory_mib=job.uses_mib, sm_active=job.load, sm_occupancy=0.3, dram_active=job.dram
        ),
        time_limit_s=job.limit_min and 60 * job.limit_min,
        declared_mib=job.declared_mib,
        has_kernels=not job.is_hung,
    )
