"""Stage `facts`: the self-test of `carma doctor --gpu`, an entry per fact."""

from __future__ import annotations

from carmad.selftest.facts import FACTS
from lab.hardware import child
from lab.hardware.visit import Portion, Stage, Visit

FACT_S = 180.0  # the longest takes half a minute; a first import of PyTorch some more
CHECKED = [fact for fact in FACTS if fact.check is not None]


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
    parts=(Portion(f"{len(CHECKED)} facts", 3.0),),
    packages=(),
    measure=measure,
    blocks=blocks,
)

if __name__ == "__main__":
    child.serve(CHECKED)
