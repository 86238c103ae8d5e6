"""`python -m benchmarks.lucid`: Lucid beside other schedulers; paper | ours | difference.

Philly's first week of October 2017 (Lucid paper, table 4), Muri's traces, the ablations of figure
11, T_prof as in table 6, how long a plan takes (4.4), and whether knobs tuned on the week before
are better than the defaults (3.6.1). `benchmarks.lucid_workload` says what is simulated and what
was decided where the paper is silent. Reads ../shared/data, writes results/lucid.{json,md}. Nothing
was tuned to the paper's results.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lucid_latency import latencies
from benchmarks.lucid_report import Runs, page
from benchmarks.lucid_runs import TUNED, cases, knobs_told, prepared, results, tuned
from benchmarks.lucid_workload import DATA
from benchmarks.rows import RESULTS, circumstances


def main() -> None:
    if not DATA.exists():
        sys.exit(f"the public traces are not here: {DATA}")
    facts = {**circumstances(), "command": "`python -m benchmarks.lucid`"}
    taken = latencies()  # first: the runs below take all cores
    with TemporaryDirectory() as directory:
        given = prepared(Path(directory))
        found = list(results(cases(), given))
        best = min(TUNED, key=lambda knobs: Runs(found).of("tuner", knobs_told(*knobs)).jct)
        found += results(tuned(best), given)
    text = page(Runs(found), taken, given.models, facts, best)
    print(text)
    (RESULTS / "lucid.md").write_text(text)
    data = {
        "facts": facts,
        "runs": [asdict(each) for each in found],
        "models": {name: dict(dict(m)["duration"].errors) for name, m in given.models.items()},
        "plans": [asdict(each) for each in taken],
    }
    (RESULTS / "lucid.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
