"""Lucid beside other schedulers, simulated: paper, ours, difference.

Philly's first week of October 2017 (Lucid paper, table 4), the ablations of figure 11, and how long
a plan takes (4.4). `lab.lucid.workload` says what is simulated and what was decided where
the paper is silent. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Report
from lab.data import DATA
from lab.lucid.page import report
from lab.lucid.runs import cases, prepared, results
from lab.lucid.timing import latencies
from lab.main import main


def measure() -> Report:
    taken = latencies()  # first: the runs below take all cores
    with TemporaryDirectory() as directory:
        given = prepared(Path(directory))
        found = list(results(cases(), given))
    return report(found, taken, given.models)


if __name__ == "__main__":
    main("lucid", measure, DATA)
