"""Do daemon and simulator decide alike?

Thirty jobs go through the real daemon, with real processes on emulated GPUs, and through the
simulator, under the papers' policies (or those named). Compared is every decision to start a
job: in which order, on which GPUs, beside whom, as which attempt, with its batch in how many parts.

Milliseconds decide in neither what does not depend on them: the trace is the first of those tried
whose simulated decisions stay the same when starts take up to `JITTER_S` longer or less and jobs
run up to 2 % longer or less. Nothing is fitted to the daemon. Takes some twenty minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import Annotated

import typer

from benchmarks.harness import Report, markdown_table
from carma_simulator.experiment import Load, Outcome, Physics, Task, Trace
from carmad.config import Profiling, Settings
from carmad.core.jobs.findings import StageTimes
from lab.main import main
from lab.simulator import emulation
from lab.simulator.emulation import (
    COMPRESSION,
    Emulation,
    Overheads,
    calibrate,
    compressed,
    overheads,
)

GPUS = "4xA100-40GB"
JOBS, KINDS = 30, 12
WARMUP_S = 0.8
DURATIONS_S, GAPS_S = (5.0, 40.0), (0.5, 6.0)
TRIED, PERTURBED = 400, 6
JITTER_S, STRETCH = 0.2, 0.02
POLICIES = ("lucid", "castor", "asrpt", "cuckoo")
ITERATION_S, DEADLINE = 0.1, 8.0  # for cuckoo: how long one is, and the deadline in durations


@dataclass(frozen=True, slots=True)
class Start:
    """One decision: what was started, where, beside whom."""

    job: int
    attempt: int
    gpus: tuple[int, ...]
    beside: tuple[int, ...]


def settings(policy: str) -> Settings:
    """Compressed; Lucid evicts from a profiling GPU."""
    profiling = Profiling(run_s=60 / COMPRESSION, gpus=1 if policy == "lucid" else 0)
    plugins = {"policies.asrpt": {"reserve": False}}  # CARMA's variant
    return replace(compressed(policy), profiling=profiling, plugins=plugins)


def trace(seed: int) -> Trace:
    """Jobs that recur: each is one of a few kinds, from hardly any load to a full GPU."""
    dice = Random(f"decisions/{seed}")
    kinds = [_kind(dice, number) for number in range(KINDS)]
    gaps = accumulate((dice.uniform(*GAPS_S) for _ in range(JOBS - 1)), initial=0.0)
    tasks = (replace(dice.choice(kinds), submit_s=at) for at in gaps)
    return Trace(f"decisions, seed {seed}", tuple(tasks))


def _kind(dice: Random, number: int) -> Task:
    busy = dice.choice((0.05, 0.15, 0.3, 0.5, 0.7, 0.9))
    load = Load(
        f"kind-{number}",
        memory_mib=dice.randrange(2_000, 16_000, 500),
        sm_active=busy,
        sm_occupancy=busy / 2,
        dram_active=busy / 3,
    )
    seconds = round(dice.uniform(*DURATIONS_S), 1)
    gpus = dice.choice((1, 1, 1, 2))
    return Task(
        name=load.model,
        submit_s=0.0,
        duration_s=seconds,
        expected_s=seconds,
        gpus=gpus,
        load=load,
        deadline_s=DEADLINE * seconds,
        stages=(_stages(busy),),
    )


def _stages(busy: float) -> StageTimes:
    """Of an iteration that keeps its GPU busy for that share; a third of it is forward."""
    load_s, gpu_s = (1 - busy) * ITERATION_S, busy * ITERATION_S
    return StageTimes(load_s, gpu_s / 3, 2 * gpu_s / 3)


def simulated(
    policy: str, trace: Trace, measured: Overheads, dice: Random | None = None
) -> Outcome:
    """With `dice`, everything a little later or sooner."""
    first_kernel_s = measured.first_kernel_s
    stretched: Callable[[float], float] = float
    if dice:
        first_kernel_s = max(0.05, first_kernel_s + dice.uniform(-JITTER_S, JITTER_S))
        stretched = partial(_about, dice)
    physics = Physics(first_kernel_s=first_kernel_s, stop_s=0.1)
    made = settings(policy)
    return emulation.simulated(trace, GPUS, made, True, measured.end_s, physics, stretched)


def _about(dice: Random, seconds: float) -> float:
    return seconds * (1 + dice.uniform(-STRETCH, STRETCH))


def starts(outcome: Outcome) -> list[Start]:
    """In the order of time."""
    index = {gpu.gpu: n for n, gpu in enumerate(outcome.gpus)}
    attempts = sorted(
        (attempt.launched_at, number, which, attempt)
        for number, job in enumerate(outcome.jobs, 1)
        for which, attempt in enumerate(job.attempts, 1)
    )
    found = []
    for at, number, which, attempt in attempts:
        beside = {
            other
            for _, other, _, there in attempts
            if there.launched_at < at < there.ended_at and set(there.gpus) & set(attempt.gpus)
        }
        gpus = tuple(sorted(index[gpu] for gpu in attempt.gpus))
        found.append(Start(number, which, gpus, tuple(sorted(beside))))
    return found


def steady(policy: str, measured: Overheads) -> tuple[int, list[Start]]:
    """The first seed whose decisions no small delay changes, and these."""
    for seed in range(TRIED):
        jobs = trace(seed)
        expected = starts(simulated(policy, jobs, measured))
        dice = Random(f"decisions/{seed}/perturbed")
        if all(
            starts(simulated(policy, jobs, measured, dice)) == expected for _ in range(PERTURBED)
        ):
            return seed, expected
    raise SystemExit(f"no trace of {TRIED} is steady under {policy}")


def emulated(policy: str, trace: Trace) -> Outcome:
    with Emulation(GPUS, settings(policy), WARMUP_S) as carmad:
        return carmad.replay(trace, declared=True)


def measure(policies: Annotated[list[str] | None, typer.Argument()] = None) -> Report:
    rows, kept = [], {}
    measured = overheads([calibrate(GPUS, settings("exclusive"), WARMUP_S)])
    for policy in policies or POLICIES:
        seed, expected = steady(policy, measured)
        print(f"{policy}: seed {seed}", file=sys.stderr)
        found = starts(emulated(policy, trace(seed)))
        same = sum(map(Start.__eq__, expected, found))
        counts = (
            *(seed, len(expected), len(found)),
            sum(bool(start.beside) for start in expected),
            sum(start.attempt > 1 for start in expected),
        )
        rows.append((policy, *map(str, counts), f"{same} of {len(expected)}"))
        kept[policy] = {
            "seed": seed,
            "simulator": [repr(start) for start in expected],
            "daemon": [repr(start) for start in found],
        }
    return Report(
        "Decisions: the daemon's and the simulator's",
        [markdown_table(HEADINGS, rows)],
        kept,
        [f"{JOBS} jobs, {GPUS}, {COMPRESSION:g} times as fast"],
        kept=not policies,
    )


HEADINGS = (
    *("policy", "seed", "starts, simulator", "starts, daemon", "beside others"),
    *("started again after profiling", "the same, in order"),
)

if __name__ == "__main__":
    main("decisions", measure)
