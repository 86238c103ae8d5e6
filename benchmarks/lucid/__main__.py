"""Lucid beside other schedulers, simulated: paper, ours, difference.

Philly's first week of October 2017 (Lucid paper, table 4), Muri's traces, the ablations of figure
11, T_prof as in table 6, how long a plan takes (4.4), and whether knobs tuned on the week before
are better than the defaults (3.6.1). `benchmarks.lucid.workload` says what is simulated and what
was decided where the paper is silent. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness.data import DATA
from benchmarks.harness.main import main
from benchmarks.harness.report import Report
from benchmarks.lucid.page import Runs, report
from benchmarks.lucid.runs import TUNED, cases, knobs_told, prepared, results, tuned
from benchmarks.lucid.timing import latencies


def measure() -> Report:
    taken = latencies()  # first: the runs below take all cores
    with TemporaryDirectory() as directory:
        given = prepared(Path(directory))
        found = list(results(cases(), given))
        best = min(TUNED, key=lambda knobs: Runs(found).of("tuner", knobs_told(*knobs)).jct)
        found += results(tuned(best), given)
    return report(found, taken, given.models, best)


if __name__ == "__main__":
    main("lucid", measure, DATA)
