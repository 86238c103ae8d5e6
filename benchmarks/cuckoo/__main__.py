"""Cuckoo beside Muri, its own variants and CARMA's other policies.

Tables 9 to 14 of the paper and its figures 10 to 12, on Muri's stage profiles, and the models'
errors on pairs that were measured. Durations are calibrated so that the variant without packing has
the paper's mean JCT and deadlines met; nothing else is fitted to the paper's results.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cuckoo.page import report
from benchmarks.cuckoo.pairs import judged
from benchmarks.cuckoo.runs import cases, results
from benchmarks.harness.data import DATA
from benchmarks.harness.main import main
from benchmarks.harness.report import Report


def measure(few: bool = False) -> Report:
    """`few`: the main variants alone, in a quarter of the time; kept under another name."""
    found = report(list(results(cases(few))), [] if few else list(judged()))
    return replace(found, name="cuckoo_few") if few else found


if __name__ == "__main__":
    main("cuckoo", measure, DATA)
