"""Cuckoo beside Muri, its own variants and CARMA's other policies.

Tables 9 to 14 of the paper and its figures 10 to 12, on Muri's stage profiles; the models' errors
on pairs that were measured; how long a plan takes. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

from benchmarks.cuckoo import timing
from benchmarks.cuckoo.page import report
from benchmarks.cuckoo.pairs import judged
from benchmarks.cuckoo.runs import cases, results
from benchmarks.harness.data import DATA
from benchmarks.harness.main import main
from benchmarks.harness.report import Report


def measure() -> Report:
    taken, pruned = list(timing.taken()), list(timing.pruned())  # first: the runs take all cores
    return report(list(results(cases())), list(judged()), taken, pruned)


if __name__ == "__main__":
    main("cuckoo", measure, DATA)
