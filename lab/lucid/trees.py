"""Would another packing tree spare the guard on GPU utilisation? Figure 6 of Lucid's paper splits
by GPU utilisation first, and knows mixed precision (AMP); the tree that CARMA ships asks for memory
utilisation alone. Trees with and without each of these, for networks that they have not seen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import Report, columns
from carmad.learning.models import Tree
from lab.data import DATA
from lab.lucid import packing
from lab.lucid.packing import ALL_OF_IT, GUARD, Packing
from lab.lucid.packing_tree import CLASSES, FEATURES, Row, fit
from lab.main import main

BUSY, MEMORY, SHARE, AMP = FEATURES
CHOICES = (FEATURES, (BUSY, MEMORY, SHARE), (BUSY, SHARE, AMP), (BUSY,), (MEMORY,))
PRUNINGS = {"by cross-validation": None, "as in the artifact": 0.0001}  # α
BY_HAND = "by hand"
GSS = 2
LIMITS = (None, GUARD, ALL_OF_IT)  # for the sum of both utilisations
ABOUT = """\
Each tree is judged on networks that it has not seen, and whose pairs had no part in its labels.
*Free*: of the pairs packed at GSS 2, how many have a mean speed of 0.85 or more; *found*: how many
of all such pairs are packed; without a limit for the sum of both utilisations, and with one. The
paper has 98.1 and 87.0 %. Labels follow from the measured pairs, or are those that the authors gave
by hand. The last row packs by the latter, and predicts nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A tree from these features, and what it packs of networks that are new to it."""

    features: str
    labels: str
    pruning: str
    leaves: int | None
    importance: str
    accuracy: float | None
    packed: tuple[Packing, ...]  # with each of LIMITS


def measure() -> Report:
    judged = [
        judge(features, labels, pruning)
        for features in CHOICES
        for labels in LABELS
        for pruning in PRUNINGS
    ]
    score = {row["job"]: CLASSES.index(row["label"]) for row in by_hand(packing.rows())}
    scores = {pair[:2]: sum(score[job] for job in pair[:2]) for pair in packing.pairs()}
    judged.append(Judged("(nothing is predicted)", BY_HAND, "", None, "", None, pack(scores)))
    table = columns(
        judged,
        ("features", "{0.features}"),
        ("labels", "{0.labels}"),
        ("pruned", "{0.pruning}"),
        ("leaves", lambda row: f"{row.leaves or ''}"),
        ("importance", "{0.importance}"),
        ("accuracy", lambda row: f"{row.accuracy:.1%}" if row.accuracy else ""),
        *(
            (f"{name}, ≤ {limit}" if limit else name, f"{{0.packed[{n}].{name}:.1%}}")
            for n, limit in enumerate(LIMITS)
            for name in ("free", "found")
        ),
        text=(0, 1, 2, 4),
    )
    return Report("Lucid's packing tree, with other features", [ABOUT, table], {"trees": judged})


def by_hand(rows: Sequence[Row]) -> list[Row]:
    """With the authors' labels."""
    return [{**row, "label": packing.authors_label(row["job"])} for row in rows]


LABELS: dict[str, Callable[[Sequence[Row]], Sequence[Row]]] = {"measured": list, BY_HAND: by_hand}


def judge(features: tuple[str, ...], labels: str, pruning: str) -> Judged:
    relabel = LABELS[labels]

    def train(rows: Sequence[Row]) -> Tree:
        return fit(relabel(rows), "", 0.0, features=features, pruning=PRUNINGS[pruning])

    table = relabel(packing.rows())
    tree = train(table)
    networks = [{model} for model in sorted({row["model"] for row in table})]
    return Judged(
        features=", ".join(features),
        labels=labels,
        pruning=pruning,
        leaves=(len(tree.nodes) + 1) // 2,
        importance=", ".join(f"{name} {share:.2f}" for name, share in tree.importance() if share),
        accuracy=packing.held_out(table, networks, train),
        packed=pack(packing.unseen_scores(train)),
    )


def pack(scores: Mapping[tuple[Hashable, Hashable], int]) -> tuple[Packing, ...]:
    return tuple(
        packing.pack("", lambda pair: scores[pair[0], pair[1]], GSS, limit) for limit in LIMITS
    )


if __name__ == "__main__":
    main("lucid_trees", measure, DATA)
