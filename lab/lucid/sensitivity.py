"""What the results of `lab.lucid` depend on: paper, ours, difference.

Space-aware profiling (figure 11), busier and less busy jobs (figure 12), the thresholds of Tiny and
Medium (4.5), T_prof (table 6), knobs tuned on the week before (3.6.1), and one of Muri's traces.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Report
from lab.data import DATA
from lab.lucid.findings import Runs
from lab.lucid.runs import TUNED, knobs_told, prepared, results, sensitivity, tuned
from lab.lucid.sensitivity_page import report
from lab.main import main


def measure() -> Report:
    with TemporaryDirectory() as directory:
        given = prepared(Path(directory))
        found = list(results(sensitivity(), given))
        runs = Runs(found)
        best = min(TUNED, key=lambda knobs: runs.of("tuner", knobs_told(*knobs)).jct)
        found += results(tuned(best), given)
    return report(found, best)


if __name__ == "__main__":
    main("lucid_sensitivity", measure, DATA)
