"""Stage `facts`: the self-test of `carma doctor --gpu`, an entry per fact."""

from __future__ import annotations

import json

from carmad.selftest.facts import FACTS, Fact
from lab import RESULTS
from lab.hardware import child
from lab.hardware.visit import Portion, Stage, Visit

FACT_S = 180.0  # the longest takes half a minute; a first import of PyTorch some more
SECONDS = 4.0  # that one takes, by estimate


def _checked() -> tuple[list[Fact], list[Fact]]:
    """Those that no GPU has been asked for, and the others."""
    lines = (line for kept in KEPT.glob("*/facts.jsonl") for line in kept.read_text().splitlines())
    known = {json.loads(line)["key"] for line in lines}
    checked = [fact for fact in FACTS if fact.check is not None]
    new = [fact for fact in checked if fact.name not in known]
    return new, [fact for fact in checked if fact.name in known]


KEPT = RESULTS / "hardware"
NEW, OTHERS = _checked()
CHECKED = [*NEW, *OTHERS]
PARTS = tuple(
    Portion(f"{len(facts)} facts {what}", round(len(facts) * SECONDS / 60, 1))
    for facts, what in ((NEW, "that are new"), (OTHERS, "that another GPU has shown"))
    if facts
)


def measure(visit: Visit) -> None:
    child.measure(visit, CHECKED, "lab.hardware.facts", FACT_S)


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
    child.serve(CHECKED)
