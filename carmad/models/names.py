"""Job names are many and much alike: each counts as the exemplar that it is nearest to (Lucid
paper, 3.5.3). Which names are exemplars is learned: `carmad.learning.names`."""

from __future__ import annotations

from collections.abc import Collection


def bucket(name: str, exemplars: Collection[str]) -> str:
    """The exemplar at the least distance from `name`, the first of equally near ones; without
    exemplars the name itself."""
    if name in exemplars:
        return name
    return min(exemplars, key=lambda exemplar: distance(name, exemplar), default=name)


def distance(one: str, other: str) -> int:
    """Levenshtein's: the least number of letters put in, taken out or replaced between the two."""
    if len(one) < len(other):
        one, other = other, one
    row = list(range(len(other) + 1))
    for n, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], n
        for m, with_letter in enumerate(other, 1):
            replaced = diagonal + (letter != with_letter)
            diagonal = row[m]
            row[m] = min(replaced, diagonal + 1, row[m - 1] + 1)
    return row[-1]
