"""Groups similar job names: each is replaced by its nearest exemplar (Lucid paper, 3.5.3). The
exemplars are learned: `carmad.learning.names`."""

from __future__ import annotations

from functools import lru_cache

LETTERS = 64  # of a name that are compared: each costs as many steps as the other name has letters


@lru_cache(maxsize=1 << 14)
def bucket(name: str, exemplars: tuple[str, ...]) -> str:
    """The exemplar nearest to `name`, the first of equally near ones; without exemplars the name
    itself. Cached: a new name takes milliseconds, and names recur."""
    if name in exemplars:
        return name
    near = name[:LETTERS]
    return min(exemplars, key=lambda one: distance(near, one[:LETTERS]), default=name)


def distance(one: str, other: str) -> int:
    """Levenshtein distance: the fewest insertions, deletions and replacements."""
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
