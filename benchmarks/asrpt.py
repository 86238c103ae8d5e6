"""`python -m benchmarks.asrpt`: A-SRPT beside the schedulers of its paper, simulated.

The paper's figures 6 to 9: total completion time by number of jobs, share of jobs of a single GPU,
network and prediction; what A-SRPT's reserve and its patience come to; and what scheduling costs.
`benchmarks.asrpt_workload` says which jobs, and why. Reads ../shared/data, writes
results/asrpt.{json,md}, takes some 15 minutes on two cores. Nothing was tuned to the paper's
results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from benchmarks.asrpt_report import page
from benchmarks.asrpt_runs import Result, cases, results
from benchmarks.asrpt_workload import PHILLY
from benchmarks.rows import RESULTS, circumstances


def main() -> None:
    if not PHILLY.exists():
        sys.exit(f"the public traces are not here: {PHILLY}")
    facts = {**circumstances(), "command": "`python -m benchmarks.asrpt`"}
    asked = cases()
    found = []
    for n, result in enumerate(results(asked, os.cpu_count() or 1), 1):
        found.append(result)
        print(f"{n} of {len(asked)}: {result.case}, {result.run_s:.0f} s", file=sys.stderr)
    text = page(found, facts)
    print(text)
    (RESULTS / "asrpt.md").write_text(text)
    (RESULTS / "asrpt.json").write_text(_json(facts, found))


def _json(facts: Mapping[str, str], found: Sequence[Result]) -> str:
    """A line for each run: they hold many numbers."""
    runs = ",\n".join(json.dumps(asdict(each)) for each in found)
    return f'{{"facts": {json.dumps(facts, indent=1)},\n"runs": [\n{runs}\n]}}\n'


if __name__ == "__main__":
    main()
