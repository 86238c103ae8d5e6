"""Cuckoo beside Muri, its own variants and CARMA's other policies.

Tables 9 to 14 of the paper and its figures 10 to 12, on Muri's stage profiles, and the models'
errors on pairs that were measured. Durations are calibrated so that the variant without packing has
the paper's mean JCT and deadlines met; nothing else is fitted to the rows that are judged. Causes
are sought with table 3's stages, calibrated on the rows of this variant and of Cuckoo.
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
