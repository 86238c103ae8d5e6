"""Job names are many and much alike: each counts as the exemplar that it is nearest to (Lucid
paper, 3.5.3). Which names are exemplars is learned: `carmad.learning.names`."""

from __future__ import annotations

from functools import lru_cache

LETTERS = 64  # of a name that count: each costs as many steps as the other name has letters


@lru_cache(maxsize=1 << 14)
def bucket(name: str, exemplars: tuple[str, ...]) -> str:
    """The exemplar at the least distance from `name`, the first of equally near ones; without
    exemplars the name itself. Remembered: a new name takes milliseconds, and comes again."""
    if name in exemplars:
        return name
    near = name[:LETTERS]
    return min(exemplars, key=lambda one: distance(near, one[:LETTERS]), default=name)


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
