"""Castor beside the schedulers of its paper, simulated.

What of the paper's evaluation (9.3 to 9.5) can be asked of public workloads: makespan, JCT and
queueing beside six baselines, large and small jobs apart, intensities, temporal sharing and MPS,
the sharing benefit, what the prediction model costs, and what splitting batches adds. On request,
each in a file of its own: `gavel`, where sharing often loses, and `decisions`, how long a decision
takes, for which the machine should have nothing else to do. `lab.castor.workload` says which
jobs on which GPUs, and why. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.harness import Report
from lab.castor.page import report
from lab.castor.runs import OF_THE_PAPER, cases, results
from lab.castor.timing import taken
from lab.data import DATA
from lab.main import main

DECISIONS = "decisions"  # the table of how long they take
Tables = Annotated[
    list[str] | None,
    typer.Argument(
        help="Only these tables, in a file of their own. By default all but gavel and decisions,"
        " for half an hour or more of processor time."
    ),
]


def measure(tables: Tables = None) -> Report:
    # First, as the runs below take all cores.
    times = list(taken(("castor", "sjf_ffs"))) if tables and DECISIONS in tables else []
    simulated = [name for name in tables or OF_THE_PAPER if name != DECISIONS]
    return report(list(results(cases(simulated))), times, "_".join(("castor", *(tables or ()))))


if __name__ == "__main__":
    main("castor", measure, DATA)
