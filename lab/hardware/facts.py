"""Stage `facts`: the self-tests of `carma doctor --gpu` and `lab.selftest`, an entry per fact."""

from __future__ import annotations

import json

from lab import RESULTS
from lab.hardware import child
from lab.hardware.visit import Portion, Stage, Visit
from lab.selftest.facts import CHECKED as ALL
from lab.selftest.facts import Assumption

FACT_S = 180.0  # the longest takes half a minute; a first import of PyTorch some more
SECONDS = 4.0  # that one takes, by estimate


def _checked() -> tuple[list[Assumption], list[Assumption]]:
    """Those that no GPU has been asked for, and the others."""
    lines = (line for kept in KEPT.glob("*/facts.jsonl") for line in kept.read_text().splitlines())
    known = {json.loads(line)["key"] for line in lines}
    new = [each for each in ALL if each.name not in known]
    return new, [each for each in ALL if each.name in known]


KEPT = RESULTS / "hardware"
NEW, OTHERS = _checked()
CHECKED = [*NEW, *OTHERS]
PARTS = tuple(
    Portion(f"{len(facts)} facts {what}", round(len(facts) * SECONDS / 60, 1))
    for facts, what in ((NEW, "that are new"), (OTHERS, "that another GPU has shown"))
    if facts
)


def measure(visit: Visit) -> None:
    child.measure(visit, [each.fact for each in CHECKED], "lab.hardware.facts", FACT_S)


def blocks(visit: Visit) -> list[str]:
    found = visit.entries()
    rows = [
        f"| {fact.relies_on} | {entry['verdict']} | {_cell(entry['detail'])} |"
        for fact in CHECKED
        if (entry := found.get(fact.name))
    ]
    counts = [sum(e["verdict"] == word for e in found.values()) for word in ("holds", "differs")]
    return [
        f"Of {len(CHECKED)} facts with a check, {counts[0]} hold and {counts[1]} differ.",
        "\n".join(["| CARMA relies on | | seen |", "|---|---|---|", *rows]),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


STAGE = Stage(
    name="facts",
    about="what CARMA relies on, checked on this GPU",
    parts=PARTS,
    packages=(),
    measure=measure,
    blocks=blocks,
)

if __name__ == "__main__":
    child.serve([each.fact for each in CHECKED])
