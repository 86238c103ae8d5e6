"""A-SRPT beside the schedulers of its paper, simulated.

The paper's figures 6 to 9: total completion time by number of jobs, share of jobs of a single GPU,
network and prediction; under several loads; and what scheduling costs.
`benchmarks.asrpt.workload` says which jobs, and why. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asrpt.page import report
from benchmarks.asrpt.runs import cases, results
from benchmarks.asrpt.workload import PHILLY
from benchmarks.harness.main import main
from benchmarks.harness.report import Report


def measure(few: bool = False) -> Report:
    """`few`: the main columns alone, in a quarter of the time; kept under another name."""
    found = report(list(results(cases(few))))
    return replace(found, name="asrpt_few") if few else found


if __name__ == "__main__":
    main("asrpt", measure, PHILLY)
