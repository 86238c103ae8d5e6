"""Reservations: GPUs kept for some users for a time, or for nobody, which is maintenance. A booking
is one that a user made.

The GPUs are chosen when the reservation is made. So the rule for a job is about one GPU at a time,
and `carma gpus` can say today what happens on Monday; a number of GPUs, bound as late as possible,
could do neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner

MOST = 100  # at a time
TIMES = 52  # that a weekly one recurs
LAPSE_S = 1800.0  # a booking is over when its users have had no job there for so long


@dataclass(frozen=True, slots=True)
class Reservation:
    """`starts` has each of its times, in order: of a weekly one, so that the core needs no time
    zone, although its hour on the wall stays the same."""

    id: int
    gpus: tuple[GpuId, ...]
    users: tuple[str, ...]  # whose jobs may start there; none: it is maintenance
    starts: tuple[float, ...]
    lasts_s: float
    by: str
    charged: tuple[str, ...] = ()  # of a booking: whose limits it counts against, users and @groups
    idle_since: float | None = None  # of a booking that has begun: its users have no job there
    uids: tuple[int, ...] = ()  # of `users`; none: an upgrade could not tell

    def admits(self, owner: Owner) -> bool:
        """Whether the account's jobs may start there. Whoever gets a name later is not admitted."""
        if not self.uids:
            return owner.user in self.users
        return owner in zip(self.uids, self.users, strict=False)

    @property
    def whose(self) -> str:
        return ", ".join(self.users) or "maintenance"

    def next_start(self, now: float) -> float | None:
        """Of the present time or the next one; None: it is over."""
        at = bisect_right(self.starts, now - self.lasts_s)
        return self.starts[at] if at < len(self.starts) else None

    def is_on(self, now: float) -> bool:
        """Whether it has begun and is not over."""
        start = self.next_start(now)
        return start is not None and start <= now

    def lapses_at(self) -> float | None:
        """None: it is in use, has not begun, or is no booking."""
        return None if self.idle_since is None else self.idle_since + LAPSE_S

    def note_use(self, owners: Iterable[Owner], now: float) -> Reservation:
        """The reservation, given whose jobs are on its GPUs."""
        idle = bool(self.charged) and self.is_on(now) and not any(map(self.admits, owners))
        if idle == (self.idle_since is not None):
            return self
        return replace(self, idle_since=now if idle else None)

    def is_over(self, now: float) -> bool:
        lapses_at = self.lapses_at()
        return self.next_start(now) is None or (lapses_at is not None and lapses_at <= now)

    def gpu_s_left(self, now: float) -> float:
        """GPU-seconds, over all of its times."""
        ahead = (min(self.lasts_s, start + self.lasts_s - now) for start in self.starts)
        return len(self.gpus) * sum(max(0.0, left) for left in ahead)

    def meets(self, other: Reservation) -> bool:
        """Whether both have a GPU at the same time."""
        return not set(self.gpus).isdisjoint(other.gpus) and any(
            mine < its + other.lasts_s and its < mine + self.lasts_s
            for mine in self.starts
            for its in other.starts
        )


class Slot(NamedTuple):
    """The present or next time of a reservation, in the view of a GPU."""

    of: Reservation
    starts_at: float
    ends_at: float
    in_s: float  # until it starts; 0: it has


def slots(reservations: Iterable[Reservation], gpu: GpuId, now: float) -> tuple[Slot, ...]:
    """Those of one GPU, the earliest first."""
    starts = ((each, each.next_start(now)) for each in reservations if gpu in each.gpus)
    found = [
        Slot(each, at, at + each.lasts_s, max(0.0, at - now))
        for each, at in starts
        if at is not None
    ]
    return tuple(sorted(found, key=lambda slot: slot.starts_at))


def is_in_the_way(job: Job, slot: Slot, now: float) -> bool:
    """Whether a running job may still be on the GPU when this begins, or is there meanwhile."""
    return not slot.of.admits(job.spec.owner) and job.at_most_s(now) > slot.in_s
