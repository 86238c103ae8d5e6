"""The main claims of the five papers on one page: the paper's figure, ours, and a verdict.

Nothing is run: our figures are read from the committed results. To renew them, run the papers'
commands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import lab.asrpt.claims
import lab.carma.claims
import lab.castor.claims
import lab.cuckoo.claims
import lab.lucid.claims
from benchmarks.harness import Report, markdown_table
from lab import RESULTS
from lab.claims import CLOSE, CONFIDENCE, Claim, Verdict, table
from lab.main import main

Read = Callable[[str], Any]  # a result by its name

PAPERS: Mapping[str, Callable[[Read], Iterable[Claim]]] = {
    "CARMA": lab.carma.claims.claims,
    "Lucid": lab.lucid.claims.claims,
    "A-SRPT": lab.asrpt.claims.claims,
    "Cuckoo": lab.cuckoo.claims.claims,
    "Castor": lab.castor.claims.claims,
}


def measure() -> Report:
    sections = {name: _section(name, claims) for name, claims in PAPERS.items()}
    all_claims = {name: its for name, (its, _) in sections.items()}
    counts = {name: Counter(claim.verdict for claim in its) for name, its in all_claims.items()}
    return Report(
        "The papers' main claims",
        [
            counted(counts),
            summary(all_claims),
            *(block for _, blocks in sections.values() for block in blocks),
        ],
        {"counts": counts},
        notes=[
            f"one row per claim; reproduced: the interval of our median ({CONFIDENCE:.0%}, by"
            f" bootstrap) meets the paper's effect within {CLOSE:.0%}, or keeps its bound;"
            " stronger, weaker: all of it lies beyond, or short of that; not: it includes none;"
            " undecided: it includes both the paper's effect and none",
            "values are of samples, loads or orders of the same jobs: see the benchmark's page",
        ],
    )


def testable(counts: Mapping[Verdict, int]) -> int:
    return sum(counts.values()) - counts.get(Verdict.UNTESTED, 0)


def held(counts: Mapping[Verdict, int]) -> int:
    """Reproduced, or stronger than the paper has it."""
    return counts.get(Verdict.REPRODUCED, 0) + counts.get(Verdict.STRONGER, 0)


def summary(claims: Mapping[str, Sequence[Claim]]) -> str:
    verdicts = Counter(claim.verdict for its in claims.values() for claim in its)
    hanging = sum(bool(claim.disagreeing) for its in claims.values() for claim in its)
    compared = sum(bool(claim.under) for its in claims.values() for claim in its)
    return (
        f"Of the {testable(verdicts)} claims that public data can test, {held(verdicts)}"
        f" ({held(verdicts) / testable(verdicts):.0%}) are reproduced or stronger. Of {compared}"
        f" that were simulated under other models of interference, too, the verdict of {hanging}"
        " hangs on the model."
    )


def _section(
    name: str, claims: Callable[[Read], Iterable[Claim]]
) -> tuple[Sequence[Claim], Sequence[str]]:
    """The claims of a paper, and the blocks that show them."""
    files: dict[str, Any] = {}

    def read(file: str) -> Any:
        if file not in files:
            files[file] = json.loads((RESULTS / f"{file}.json").read_text())
        return files[file]

    its = list(claims(read))
    links = [f"[{file}]({file}.md) of {data['facts']['date'][:10]}" for file, data in files.items()]
    return its, (f"## {name}", f"From {', '.join(links)}.", table(its))


def counted(counts: Mapping[str, Mapping[Verdict, int]]) -> str:
    """How many claims of each paper got which verdict."""
    rows = [
        (name, *(str(its.get(verdict, 0)) for verdict in Verdict)) for name, its in counts.items()
    ]
    return markdown_table(("", *Verdict), rows, range(1, len(Verdict) + 1))


if __name__ == "__main__":
    main("reproduce", measure)
