"""The main claims of the five papers on one page: the paper's figure, ours, and a verdict.

Nothing is run. The claims come from the committed results, where each paper's benchmark keeps them
under `claims`; to renew one, run its benchmark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness import claims, report
from benchmarks.harness.claims import CLOSE, Claim, Verdict
from benchmarks.harness.main import main
from benchmarks.harness.report import Report
from carmad.sim.report import markdown

PAPERS = ("CARMA", "Lucid", "A-SRPT", "Cuckoo", "Castor")
_CLAIMS = TypeAdapter(list[Claim])


def measure() -> Report:
    found = list(collected(report.RESULTS))
    counts = {
        paper: Counter(claim.verdict for claim, _ in found if claim.source == paper)
        for paper in PAPERS
    }
    return Report(
        "The papers' main claims",
        [_counted(counts), *(block for paper in PAPERS for block in _section(paper, found))],
        {"counts": counts},
        notes=[
            f"reproduced: our median is within {CLOSE:.0%} of the paper's effect, or the paper's"
            " figure within our range; direction only: all of ours show the effect, of another"
            " size; not reproduced: not all do"
        ],
    )


def collected(results: Path) -> Iterator[tuple[Claim, str]]:
    """Each claim, and the name of the result that it is in."""
    for file in sorted(results.glob("*.json")):
        for claim in _CLAIMS.validate_python(json.loads(file.read_text()).get("claims", [])):
            yield claim, file.stem


def _counted(counts: Mapping[str, Counter[Verdict]]) -> str:
    rows = [(paper, *(str(its[verdict]) for verdict in Verdict)) for paper, its in counts.items()]
    return markdown.table(("", *Verdict), rows, range(1, len(Verdict) + 1))


def _section(paper: str, found: Sequence[tuple[Claim, str]]) -> Sequence[str]:
    its = [claim for claim, _ in found if claim.source == paper]
    files = sorted({file for claim, file in found if claim.source == paper})
    links = ", ".join(f"[{file}]({file}.md)" for file in files)
    return f"## {paper}", f"From {links or 'no result'}.", claims.table(its)


if __name__ == "__main__":
    main("reproduce", measure)
