"""A-SRPT beside the schedulers of its paper, simulated.

The paper's figures 6 to 9: total completion time by number of jobs, share of jobs of a single GPU,
network and prediction; under several loads; and what scheduling costs.
`lab.asrpt.workload` says which jobs, and why. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness import Report
from lab.asrpt.page import report
from lab.asrpt.runs import cases, results
from lab.asrpt.workload import PHILLY
from lab.main import main


def measure(few: bool = False) -> Report:
    """`few`: the main columns alone, in a quarter of the time; kept under another name."""
    found = report(list(results(cases(few))))
    return replace(found, name="asrpt_few") if few else found


if __name__ == "__main__":
    main("asrpt", measure, PHILLY)
