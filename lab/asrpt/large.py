"""A-SRPT at its paper's usual number of jobs: one window of 15,000 on a fifth of the servers.

The paper has 75,000 on all of them where it is not their number that varies. To simulate these
would take hours for each policy; a fifth takes a minute, all of them 20 minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import Report, columns
from lab.asrpt.page import AGAINST_PERFECT, Beside, Runs, beside_paper, extreme, price
from lab.asrpt.runs import (
    ADAPTIVE,
    BASELINES,
    OURS,
    PAPER,
    PART,
    PERFECT,
    UNHELD,
    Case,
    Result,
    results,
)
from lab.asrpt.workload import PHILLY
from lab.main import main

LARGE = Case(75_000 // PART)
LONG = f"{LARGE.jobs:,} jobs"

SETTING = f"""\
The first of the windows of `lab.asrpt`, but {LARGE.jobs:,} jobs long: a single window, so without
an interval. Perfect: with durations that are known. The longer the window, the longer the queue:
jobs that are spread over servers take up to hundreds of times as long, and hold their GPUs. As the
paper prints it (algorithm 1, lines 5 and 25), A-SRPT waits while the first job in its queue finds
too few GPUs: here that costs more than its order gains, as it does SPJF and SPWF. The WCS
baselines, and A-SRPT with a queue that is not held, let others pass."""


def cases() -> list[Case]:
    adaptive = (f"{name}{ADAPTIVE}" for name in BASELINES)
    return [
        *(replace(LARGE, policy=policy) for policy in (*OURS, *BASELINES, *adaptive)),
        *(replace(LARGE, policy=policy, prediction=PERFECT) for policy in (PAPER, UNHELD)),
    ]


def measure() -> Report:
    return report(list(results(cases())))


def report(found: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in found}, 1)
    beside = against_paper(runs)
    blocks = [SETTING, beside_paper(beside), _table(found)]
    title = f"A-SRPT with {LARGE.jobs:,} jobs on a fifth of its paper's servers"
    return Report(title, blocks, {"beside": beside, "runs": found})


def against_paper(runs: Runs) -> list[Beside]:
    every = tuple(BASELINES)
    return [
        extreme(runs, f"{LONG}, against any baseline: least", -31, [LARGE], max, every),
        extreme(runs, f"{LONG}, against any baseline: most", -91, [LARGE], min, every),
        price(runs, f"{LONG}, {AGAINST_PERFECT}", 14, LARGE),
    ]


def _table(found: Sequence[Result]) -> str:
    return columns(
        found,
        ("", lambda it: it.case.policy + (", perfect" if it.case.prediction == PERFECT else "")),
        ("thousand hours", lambda it: f"{it.total / 1000:,.0f}"),
        ("mean in line, h", "{0.wait:,.1f}"),
        ("most in line", "{0.queue_max:,}"),
        ("slow-down by spreading, mean", "{0.slowdown:.1f}"),
        ("worst", "{0.slowest:.0f}"),
        ("makespan, h", "{0.makespan:,.0f}"),
        ("load", "{0.load:.2f}"),
        ("whole run s", "{0.run_s:.0f}"),
    )


if __name__ == "__main__":
    main("asrpt_large", measure, PHILLY)
