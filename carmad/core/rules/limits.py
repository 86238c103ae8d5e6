"""What administrators set, and users book: limits of users and groups, and reservations of GPUs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from carmad.config import Limits
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.spec import Owner

DEFAULT = "default"  # the limit of each user without one
Subject = Owner | str  # a user; "@group" or `DEFAULT`
Period = Literal["day", "week", "month"]
DAYS: dict[Period, int] = {"day": 1, "week": 7, "month": 30}  # with the current one (UTC)
MOST = 100  # at a time
TIMES = 52  # that a weekly one recurs
LAPSE_S = 1800.0  # a booking is over when its users have had no job there for so long


@dataclass(frozen=True, slots=True)
class Limit:
    """None: not limited here, but nobody may book without a limit. The users of a group share its
    limit."""

    subject: str  # a user's name, "@group" or `DEFAULT`
    gpus: int | None = None  # held at once
    gpu_hours: float | None = None  # used per period; jobs that run then continue
    per: Period = "week"
    jobs: int | None = None  # waiting; not of groups
    booking: float | None = None  # GPU-hours of bookings that are not over
    by: str = ""  # who set it last
    at: float = 0.0
    uid: int | None = None  # of the user; None for others, and where an upgrade could not tell

    def is_of(self, owner: Owner) -> bool:
        """Whoever gets the name later does not get the limit."""
        return self.subject == owner.user and self.uid in (None, owner.uid)

    @property
    def empty(self) -> bool:
        return (self.gpus, self.gpu_hours, self.jobs, self.booking) == (None,) * 4

    def over(self, other: Limit) -> Limit:
        """With `other` where this has none."""
        hours, per = (
            (other.gpu_hours, other.per) if self.gpu_hours is None else (self.gpu_hours, self.per)
        )
        gpus = other.gpus if self.gpus is None else self.gpus
        jobs = other.jobs if self.jobs is None else self.jobs
        booking = other.booking if self.booking is None else self.booking
        return replace(self, gpus=gpus, gpu_hours=hours, per=per, jobs=jobs, booking=booking)


def limit_of(owner: Owner, limits: Mapping[str, Limit], settings: Limits) -> Limit:
    """The user's own limit, then the default, then the settings."""
    own = limits.get(owner.user)
    if own is None or not own.is_of(owner):
        own = Limit(owner.user, uid=owner.uid)
    return own.over(default_limit(limits, settings))


def default_limit(limits: Mapping[str, Limit], settings: Limits) -> Limit:
    usual = Limit(DEFAULT, settings.gpus_per_user, jobs=settings.queued_per_user)
    return limits.get(DEFAULT, usual).over(usual)


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
