"""`python -m benchmarks.cuckoo`: Cuckoo beside Muri, its own variants and CARMA's other policies.

Tables 9 to 14 of the paper and its figures 10 to 12, on Muri's stage profiles; the models' errors
on pairs that were measured; how long a plan takes. Reads ../shared/data, writes
results/cuckoo.{json,md}. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.cuckoo import timing
from benchmarks.cuckoo.page import page
from benchmarks.cuckoo.pairs import judged
from benchmarks.cuckoo.runs import cases, results
from benchmarks.cuckoo.workload import DATA
from benchmarks.rows import RESULTS, circumstances


def main() -> None:
    if not DATA.exists():
        sys.exit(f"the public traces are not here: {DATA}")
    facts = {**circumstances(), "command": "`python -m benchmarks.cuckoo`"}
    taken = list(timing.measure())  # first: the runs below take all cores
    pruned = list(timing.pruned())
    found = list(results(list(cases()), os.cpu_count() or 1))
    pairs = list(judged())
    text = page(found, pairs, taken, pruned, facts)
    print(text)
    (RESULTS / "cuckoo.md").write_text(text)
    parts: Mapping[str, Sequence[Any]] = {
        "runs": found,
        "pairs": pairs,
        "plans": taken,
        "pruned": pruned,
    }
    data = {"facts": facts, **{name: [asdict(each) for each in of] for name, of in parts.items()}}
    (RESULTS / "cuckoo.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
