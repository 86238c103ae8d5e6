"""`python -m benchmarks.castor`: Castor beside the schedulers of its paper, simulated.

What of the paper's evaluation (9.3 to 9.5) can be asked of public workloads: makespan, JCT and
queueing beside six baselines, large and small jobs apart, intensities, temporal sharing and MPS,
the sharing benefit, what the prediction model costs, what splitting batches adds, and how long a
decision takes. `benchmarks.castor_workloads` says which jobs on which GPUs, and why. Reads
../shared/data, writes results/castor.{json,md}. Nothing was tuned to the paper's results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from benchmarks.castor_decisions import Taken, measure
from benchmarks.castor_report import page
from benchmarks.castor_runs import MpsOnStreams, Result, cases, results
from benchmarks.castor_workloads import DATA
from benchmarks.rows import RESULTS, circumstances
from carmad.sim import interference

TIMED = ("castor", "sjf_ffs")
interference.MODELS["mps_on_streams"] = MpsOnStreams  # also in the processes that simulate


def main() -> None:
    if not DATA.exists():
        sys.exit(f"the public traces are not here: {DATA}")
    facts = {**circumstances(), "command": "`python -m benchmarks.castor`"}
    taken = list(measure(TIMED))  # first: the runs below take all cores
    asked = cases()
    found = []
    for n, result in enumerate(results(asked, os.cpu_count() or 1), 1):
        found.append(result)
        if n % 20 == 0:
            print(f"{n} of {len(asked)} runs", file=sys.stderr)
    text = page(found, taken, facts)
    print(text)
    (RESULTS / "castor.md").write_text(text)
    (RESULTS / "castor.json").write_text(_json(facts, found, taken))


def _json(facts: Mapping[str, str], found: Sequence[Result], taken: Sequence[Taken]) -> str:
    """A line for each run: they hold many numbers."""
    runs = ",\n".join(json.dumps(asdict(each)) for each in found)
    decisions = json.dumps([asdict(each) for each in taken], indent=1)
    told = json.dumps(facts, indent=1)
    return f'{{"facts": {told},\n"decisions": {decisions},\n"runs": [\n{runs}\n]}}\n'


if __name__ == "__main__":
    main()
