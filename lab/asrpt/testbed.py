"""The testbed of A-SRPT's paper (figure 5), simulated.

14 GPUs at equal distances, and 75 consecutive jobs, all times a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import Report, markdown_table
from lab.asrpt.page import POLICIES, Beside, Runs, beside_paper, extent, extreme
from lab.asrpt.runs import BASELINES, PAPER, PERFECT, SMALL, Result, results, testbed
from lab.asrpt.workload import PHILLY
from lab.main import main

SETTING = """\
Sums of all job completion times, medians of five sets of consecutive jobs and their range; the
paper has the mean of three sets. The jobs are those of `lab.asrpt`, as dense as PAI's: the
paper's set-up, in which all 75 come within a minute. Their times and predictions are a tenth.
Nobody has patience. Jobs of more than 14 GPUs are left out."""


def measure() -> Report:
    return report(list(results(testbed())))


def report(found: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in found})
    beside = against_paper(runs)
    blocks = [SETTING, beside_paper(beside), _table(runs)]
    title = "A-SRPT on its paper's testbed, simulated"
    return Report(title, blocks, {"beside": beside, "runs": found})


def against_paper(runs: Runs) -> list[Beside]:
    perfect = runs.changes(SMALL, replace(SMALL, prediction=PERFECT))
    return [
        extreme(runs, "testbed, against any baseline: most", -44, [SMALL], min, BASELINES),
        Beside("testbed: against perfect prediction", 7, {PAPER: perfect}),
    ]


def _table(runs: Runs) -> str:
    headings = ("", "total hours", "against A-SRPT's", "makespan h", "against A-SRPT's")
    named = {policy: replace(SMALL, policy=policy) for policy in POLICIES}
    named["A-SRPT-Perfect"] = replace(SMALL, prediction=PERFECT)
    rows = []
    for name, case in named.items():
        cells = [name]
        for what in ("total", "makespan"):
            middle, low, high = extent(runs.changes(case, SMALL, what))
            cells.append(f"{runs.median(case, what):,.2f}")
            cells.append("" if case == SMALL else f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})")
        rows.append(cells)
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


if __name__ == "__main__":
    main("asrpt_testbed", measure, PHILLY)
