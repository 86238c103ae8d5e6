"""When jobs that share a GPU end: a model of their speeds, and what follows if one more joins.

All times are in seconds from now; remaining times are those of the job running alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What a neighbour that keeps the whole GPU busy costs a job that would do so, too: fitted to
# measured pairs (`python -m benchmarks.simulator.interference`; time-sliced: Lucid's artifact,
# MPS: Gavel's).
TIME_SLICED, MPS = 0.69, 0.60


class Member(NamedTuple):
    """A job on a GPU: its SM activity alone (0–1), and how long it would still run alone."""

    activity: float
    left_s: float


class Joining(NamedTuple):
    """When each job on a GPU ends, the newcomer last: if it joins now, if it joins when the first
    of them has ended, and if it never does."""

    now: tuple[float, ...]
    later: tuple[float, ...]
    never: tuple[float, ...]
    first_s: float  # when the first of them ends if it has not joined


def speed(own: float, others: float, cost: float) -> float:
    """Of a job with this activity beside `others` (a sum), relative to alone. What they ask for
    beyond one whole GPU has to wait in full."""
    return 1.0 / (1.0 + own * (cost * others + (1.0 - cost) * max(0.0, others - 1.0)))


def ends(members: Sequence[Member], cost: float) -> tuple[float, ...]:
    """When each of them ends if nobody joins them."""
    found = [0.0] * len(members)
    left = [member.left_s for member in members]
    present = list(range(len(members)))
    at = 0.0
    while present:
        total = sum([members[n].activity for n in present])
        speeds = [speed(a := members[n].activity, total - a, cost) for n in present]
        passed, next_ = min((left[n] / s, n) for n, s in zip(present, speeds, strict=True))
        at += passed
        for n, s in zip(present, speeds, strict=True):
            left[n] -= passed * s
            found[n] = at
        present = [n for n in present if n != next_]
    return tuple(found)


def joining(there: Sequence[Member], new: Member, cost: float) -> Joining:
    """What becomes of the jobs `there`, at least one, and of a newcomer."""
    never = ends(there, cost)
    first_s = min(never)
    total = sum([member.activity for member in there])
    stay = [
        (n, Member(a, left_s - first_s * speed(a, total - a, cost)))
        for n, (a, left_s) in enumerate(there)
        if never[n] > first_s
    ]
    *after, new_s = ends([*(member for _, member in stay), new], cost)
    later = list(never)
    for (n, _), end_s in zip(stay, after, strict=True):
        later[n] = first_s + end_s
    now = ends([*there, new], cost)
    return Joining(now, (*later, first_s + new_s), never, first_s)
