"""The testbed of A-SRPT's paper (figure 5), simulated.

14 GPUs at equal distances, and 75 consecutive jobs, all times a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import Report, markdown_table
from lab.asrpt.page import (
    AGAINST_PERFECT,
    POLICIES,
    Beside,
    Runs,
    beside_paper,
    extent,
    extreme,
    price,
)
from lab.asrpt.runs import (
    BASELINES,
    MORE_SEEDS,
    PERFECT,
    SMALL,
    SMALLS,
    Case,
    Result,
    results,
    testbed,
)
from lab.asrpt.workload import PHILLY
from lab.main import main

SETTING = """\
Sums of all job completion times, medians of ten sets of consecutive jobs and their range; the
paper has the mean of three sets. The jobs are those of `lab.asrpt`, as dense as PAI's. Their times
and predictions are a tenth. Nobody has patience. Jobs of more than 14 GPUs are left out.

- **As printed**: 75 consecutive jobs of a trace that has one every 7 s come within a minute, at a
  tenth of the time; over 70 % of its jobs are of one GPU. The claims are judged by this set-up. The
  paper's "scheduling period on the order of hours" is how long a method takes: see the makespan.
- **Philly's demands**: 93 % of one GPU.
- **Arrivals over an hour**: as printed, but for arrivals, which are spread until the last job comes
  after an hour: "hours" read as those in which jobs come."""
CAUSES = """\
- **Predictions.** As printed, A-SRPT leads by nearly as much as in the paper where it knows how
  long jobs take: our forest is right less often than the paper's (asrpt_prediction.md).
- **The held queue** costs most of the rest: a wide job at its head has GPUs idle while narrow ones
  wait behind it.
- **The reserve** costs little there: CARMA's variant, which does not have jobs wait for their turn
  in the virtual machine, is no better.
- With Philly's demands, or few jobs in line, orders differ little, and A-SRPT leads by little."""


def measure() -> Report:
    return report(list(results(testbed())))


def report(found: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in found}, MORE_SEEDS)
    beside = {
        name: [*against_paper(runs, case), knowing(runs, case)] for name, case in SMALLS.items()
    }
    blocks = [SETTING]
    for name, case in SMALLS.items():
        blocks += [f"## {name[0].upper()}{name[1:]}", beside_paper(beside[name])]
        blocks += [_table(runs, case)]
    blocks += ["## Causes of the differences", CAUSES]
    title = "A-SRPT on its paper's testbed, simulated"
    return Report(title, blocks, {"beside": beside, "runs": found})


def against_paper(runs: Runs, case: Case = SMALL) -> list[Beside]:
    return [
        extreme(runs, "testbed, against any baseline: most", -44, [case], min, BASELINES),
        price(runs, f"testbed: {AGAINST_PERFECT}", 7, case),
    ]


def knowing(runs: Runs, case: Case = SMALL) -> Beside:
    """The first figure, had A-SRPT known how long jobs take, and its baselines not."""
    what = "the same, durations known to A-SRPT"
    return extreme(runs, what, -44, [case], min, BASELINES, prediction=PERFECT)


def _table(runs: Runs, ours: Case) -> str:
    headings = ("", "total hours", "against A-SRPT's", "makespan h", "against A-SRPT's", "load")
    named = {policy: replace(ours, policy=policy) for policy in POLICIES}
    named["A-SRPT-Perfect"] = replace(ours, prediction=PERFECT)
    rows = []
    for name, case in named.items():
        cells = [name]
        for what in ("total", "makespan"):
            middle, low, high = extent(runs.changes(case, ours, what))
            cells.append(f"{runs.median(case, what):,.2f}")
            cells.append("" if case == ours else f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})")
        rows.append((*cells, f"{runs.median(case, 'load'):.1f}"))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


if __name__ == "__main__":
    main("asrpt_testbed", measure, PHILLY)
