"""A-SRPT at its paper's middle number of jobs: one window of 15,000 on a fifth of the servers.

The paper has 37,500 to 150,000 jobs on all of them, and 75,000 where it is not their number that
varies. All 75,000 on 2,000 GPUs would take hours for each policy. Takes half an hour of processor
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.harness import Report, markdown_table
from lab.asrpt.page import Beside, Runs, beside_paper, extreme, price
from lab.asrpt.runs import (
    ADAPTIVE,
    BASELINES,
    OURS,
    PAI_SHARE,
    PAPER,
    PART,
    PERFECT,
    Case,
    Result,
    results,
)
from lab.asrpt.workload import PHILLY
from lab.main import main

JOBS = 75_000 // PART
COLUMNS: Mapping[str, Case] = {
    "Philly's demands": Case(JOBS),
    "70 % of one GPU": Case(JOBS, single_gpu=PAI_SHARE),
}
POLICIES = (*OURS, *BASELINES, *(f"{name}{ADAPTIVE}" for name in BASELINES))

SETTING = f"""\
The first of the windows of `lab.asrpt`, {JOBS:,} jobs long: one window has no interval. Philly's
jobs are to 93 % of one GPU; of PAI's, the paper says, over 70 % are: demands are drawn anew for
the second column."""


def cases() -> list[Case]:
    return [
        its
        for case in COLUMNS.values()
        for its in (
            *(replace(case, policy=policy) for policy in POLICIES),
            *(replace(case, policy=policy, prediction=PERFECT) for policy in OURS),
        )
    ]


def measure() -> Report:
    return report(list(results(cases())))


def report(found: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in found}, 1)
    beside = {name: against_paper(runs, case) for name, case in COLUMNS.items()}
    blocks = [SETTING]
    for name, case in COLUMNS.items():
        blocks += [f"## {name}", beside_paper(beside[name]), _table(runs, case)]
    title = f"A-SRPT with {JOBS:,} jobs on a fifth of its paper's servers"
    return Report(title, blocks, {"beside": beside, "runs": found})


def against_paper(runs: Runs, case: Case) -> list[Beside]:
    every = tuple(BASELINES)
    return [
        extreme(runs, "against any baseline: least", -31, [case], max, every),
        extreme(runs, "against any baseline: most", -91, [case], min, every),
        price(runs, "against perfect prediction", 14, case),
    ]


def _table(runs: Runs, ours: Case) -> str:
    headings = (
        *("", "thousand hours", "A-SRPT's", "mean in line, h", "most in line"),
        *("slow-down by spreading: mean", "worst", "makespan, h", "load", "whole run s"),
    )
    named = {policy: replace(ours, policy=policy) for policy in POLICIES}
    named |= {f"{it}, perfect": replace(ours, policy=it, prediction=PERFECT) for it in OURS}
    rows = []
    for name, case in named.items():
        (its,) = runs.seeds(case)
        (change,) = runs.changes(ours, case)
        rows.append(
            (
                name,
                f"{its.total / 1000:,.1f}",
                "" if name == PAPER else f"{change:+.0f} %",
                f"{its.wait:,.1f}",
                f"{its.queue_max:,}",
                f"{its.slowdown:.2f}",
                f"{its.slowest:.0f}",
                f"{its.makespan:,.0f}",
                f"{its.load:.2f}",
                f"{its.run_s:.0f}",
            )
        )
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


if __name__ == "__main__":
    main("asrpt_large", measure, PHILLY)
