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

OUTLASTS = 16  # times what all others would run, one after the other: no slowdown is as much


class Member(NamedTuple):
    """A job on a GPU: its SM activity when alone (0–1), and the time it needs to finish alone."""

    activity: float
    left_s: float


class Company(NamedTuple):
    """The jobs on a GPU, at least one, if nobody joins them: when each of them ends, and, when the
    first has ended, the others."""

    members: tuple[Member, ...]
    ends_s: tuple[float, ...]
    first_s: float
    after: tuple[tuple[int, Member], ...]  # with their places among the members


class Joining(NamedTuple):
    """When each job on a GPU ends, the newcomer last: if it joins now, and if it joins when the
    first of the others has ended."""

    now: tuple[float, ...]
    later: tuple[float, ...]


def speed(own: float, others: float, cost: float) -> float:
    """Of a job with this activity beside `others` (a sum), relative to alone. What they ask for
    beyond one whole GPU has to wait in full."""
    return 1.0 / (1.0 + own * (cost * others + (1.0 - cost) * max(0.0, others - 1.0)))


def ends(members: Sequence[Member], cost: float) -> tuple[float, ...]:
    """When each of them ends if nobody joins them."""
    found = [0.0] * len(members)
    present = [(left_s, own, n) for n, (own, left_s) in enumerate(members)]
    at = 0.0
    while present:
        total = sum([own for _, own, _ in present])
        speeds = [speed(own, total - own, cost) for _, own, _ in present]
        passed, first = min(
            [(left_s / s, n) for (left_s, _, n), s in zip(present, speeds, strict=True)]
        )
        at += passed
        found[first] = at
        present = [
            (left_s - passed * s, own, n)
            for (left_s, own, n), s in zip(present, speeds, strict=True)
            if n != first
        ]
    return tuple(found)


def company(members: Sequence[Member], cost: float) -> Company:
    ends_s = ends(members, cost)
    first_s = min(ends_s)
    total = sum([member.activity for member in members])
    after = tuple(
        (n, Member(a, left_s - first_s * speed(a, total - a, cost)))
        for n, (a, left_s) in enumerate(members)
        if ends_s[n] > first_s
    )
    return Company(tuple(members), ends_s, first_s, after)


def joining(there: Company, new: Member, cost: float) -> Joining:
    *after_s, new_s = ends([*(member for _, member in there.after), new], cost)
    later = list(there.ends_s)
    for (n, _), end_s in zip(there.after, after_s, strict=True):
        later[n] = there.first_s + end_s
    now = ends([*there.members, new], cost)
    return Joining(now, (*later, there.first_s + new_s))


def outlasting(there: Company, activity: float, cost: float) -> Joining:
    """The same for a newcomer that runs for longer than all others. How much longer makes no
    difference to them, so its own ends are given less its remaining time."""
    left_s = OUTLASTS * sum([member.left_s for member in there.members])
    now, later = joining(there, Member(activity, left_s), cost)
    return Joining((*now[:-1], now[-1] - left_s), (*later[:-1], later[-1] - left_s))
