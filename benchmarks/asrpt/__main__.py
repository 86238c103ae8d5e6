"""A-SRPT beside the schedulers of its paper, simulated.

The paper's figures 6 to 9: total completion time by number of jobs, share of jobs of a single GPU,
network and prediction; what A-SRPT's reserve and its patience come to; and what scheduling costs.
`benchmarks.asrpt.workload` says which jobs, and why. Takes some 15 minutes on two cores. Nothing
was tuned to the paper's results.
"""

from __future__ import annotations

from benchmarks.asrpt.page import report
from benchmarks.asrpt.runs import cases, results
from benchmarks.asrpt.workload import PHILLY
from benchmarks.harness.main import main
from benchmarks.harness.report import Report


def measure() -> Report:
    return report(list(results(cases())))


if __name__ == "__main__":
    main("asrpt", measure, PHILLY)
