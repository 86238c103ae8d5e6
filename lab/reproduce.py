"""The main claims of the five papers on one page: the paper's figure, ours, and a verdict.

Nothing is run: our figures are read from the committed results. To renew them, run the papers'
commands.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lab.asrpt.claims
import lab.carma.claims
import lab.castor.claims
import lab.cuckoo.claims
import lab.lucid.claims
from benchmarks.harness import Report, markdown_table
from lab import RESULTS
from lab.claims import CLOSE, CONFIDENCE, DRAWS, Claim, Verdict, table
from lab.main import main

Read = Callable[[str], Any]  # a result by its name

PAPERS: Mapping[str, Callable[[Read], Iterable[Claim]]] = {
    "CARMA": lab.carma.claims.claims,
    "Lucid": lab.lucid.claims.claims,
    "A-SRPT": lab.asrpt.claims.claims,
    "Cuckoo": lab.cuckoo.claims.claims,
    "Castor": lab.castor.claims.claims,
}


RULE = f"""\
**The rule.** The median of ours decides: *reproduced* within {CLOSE:.0%} of the paper's effect (its
figure less what would be no effect), *stronger* or *weaker* beyond that, *not reproduced* if there
is no effect or the opposite; a limit is kept or not. *Undecided*: the median's {CONFIDENCE:.0%}
interval (by bootstrap) reaches into another verdict. *Indicative*: something is drawn, and there
are fewer than {DRAWS} draws; one figure decides only where nothing is drawn, or where it is of a
whole data set or of all plans of a run. *Another set-up*: ours is stronger, but a figure of the
set-up is not the paper's within {CLOSE:.0%}, or none is known. *Fitted*: chosen on the data that it
is judged on, which counts for nothing. *Not yet run*: public data can test it, and it counts among
such, but it has not been run with the code of now. In brackets: what the figures alone would say.
A limit of time is kept or not on our machine, whatever the paper's was."""
# What was judged otherwise until 2026-12-01, with the old verdict; a reason if it is not the rule.
BEFORE = Path(__file__).with_name("verdicts_before.csv")
BY_RULE = {
    Verdict.UNDECIDED: "its interval reaches into another verdict",
    Verdict.INDICATIVE: "too few draws",
    Verdict.ELSEWHERE: "stronger, in another set-up than the paper's",
}


def measure() -> Report:
    sections = {name: _section(name, claims) for name, claims in PAPERS.items()}
    all_claims = {name: its for name, (its, _) in sections.items()}
    verdicts = {
        name: {claim.what: claim.verdict for claim in its} for name, its in all_claims.items()
    }
    counts = {name: Counter(claim.verdict for claim in its) for name, its in all_claims.items()}
    return Report(
        "The papers' main claims",
        [
            counted(counts),
            summary(all_claims),
            RULE,
            *(block for _, blocks in sections.values() for block in blocks),
            "## Verdicts that changed",
            "Until 2026-12-01 a claim was reproduced if the interval of our median came within a"
            " quarter of the paper's effect, so that noise helped: 60 of 90 were reproduced or"
            " stronger.",
            markdown_table(("paper", "claim", "before", "after", "why"), [*changed(verdicts)]),
        ],
        {"counts": counts, "verdicts": verdicts},
        notes=["values are of samples, loads or draws: see the command's page"],
    )


def changed(verdicts: Mapping[str, Mapping[str, Verdict]]) -> Iterator[tuple[str, ...]]:
    """Each claim that was judged otherwise, or elsewhere, and why."""
    with BEFORE.open(newline="") as file:
        for paper, what, before, elsewhere, why in list(csv.reader(file))[1:]:
            if elsewhere == "-":
                yield paper, what, before, "no claim", why
                continue
            after = verdicts[paper][elsewhere or what]
            if after != before or elsewhere:
                told = f"{after}: {elsewhere}" if elsewhere else after
                yield paper, what, before, told, why or BY_RULE.get(after, "")


def testable(counts: Mapping[Verdict, int]) -> int:
    """What could come out either way."""
    return sum(counts.values()) - counts.get(Verdict.UNTESTED, 0) - counts.get(Verdict.FITTED, 0)


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
