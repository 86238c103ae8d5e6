"""Cuckoo beside Muri, its own variants and CARMA's other policies.

Tables 9 to 14 of the paper and its figures 10 to 12, on Muri's stage profiles, and the models'
errors on pairs that were measured. What the paper does not print (durations, how much slower its
slower GPUs are) is calibrated on two of its rows, Cuckoo and the variant without packing; nothing
is fitted to the other rows, which are judged.
"""

from __future__ import annotations

from benchmarks.harness import Report
from lab.cuckoo.page import report
from lab.cuckoo.pairs import judged
from lab.cuckoo.runs import cases, results
from lab.data import DATA
from lab.main import main


def measure() -> Report:
    return report(list(results(cases())), list(judged()))


if __name__ == "__main__":
    main("cuckoo", measure, DATA)
