"""Limits of users and groups: GPUs held at once, GPU-hours, waiting jobs, bookings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from carmad.config import Limits
from carmad.core.decision import Reason
from carmad.core.share import DAY_S, HOUR_S, Shares, frees_at

DEFAULT = "default"  # the limit of each user without one
Period = Literal["day", "week", "month"]
DAYS: dict[Period, int] = {"day": 1, "week": 7, "month": 30}  # with the current one (UTC)


@dataclass(frozen=True, slots=True)
class Limit:
    """None: not limited here, but nobody may book without a limit. The users of a group share its
    limit."""

    subject: str  # a user, "@group" or `DEFAULT`
    gpus: int | None = None  # held at once
    gpu_hours: float | None = None  # used per period; jobs that run then continue
    per: Period = "week"
    jobs: int | None = None  # waiting; not of groups
    booking: float | None = None  # GPU-hours of bookings that are not over
    by: str = ""  # who set it last
    at: float = 0.0

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


def limit_of(user: str, limits: Mapping[str, Limit], settings: Limits) -> Limit:
    """The user's own limit, then the default, then the settings."""
    usual = Limit(DEFAULT, settings.gpus_per_user, jobs=settings.queued_per_user)
    return limits.get(user, Limit(user)).over(limits.get(DEFAULT, usual)).over(usual)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits, and what counts against them at one moment."""

    limits: Mapping[str, Limit]
    settings: Limits
    held: Mapping[str, int]  # GPUs, by user
    shares: Shares
    now: float
    _found: dict[tuple[str, int], Reason | None] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether jobs may have to wait for one."""
        return self.settings.gpus_per_user is not None or bool(self.limits)

    def refusal(self, user: str, gpus: int) -> Reason | None:
        """Why a job of the user may not start now."""
        if (user, gpus) not in self._found:
            self._found[user, gpus] = self._refusal(user, gpus)
        return self._found[user, gpus]

    def of(self, subject: str) -> Limit:
        """The limit that applies to this user or "@group"."""
        if subject.startswith("@"):
            return self.limits.get(subject, Limit(subject))
        return limit_of(subject, self.limits, self.settings)

    def gpus_held(self, subject: str) -> int:
        return sum(self.held.get(user, 0) for user in self._users(subject))

    def hours_used(self, subject: str, per: Period) -> float:
        return self._usage_s(subject, self._today - DAYS[per] + 1) / HOUR_S

    def frees_at(self, subject: str) -> float:
        """When the subject's GPU-hours are below the limit again, if no more are used; infinite:
        never."""
        limit = self.of(subject)
        most_s = (limit.gpu_hours or 0.0) * HOUR_S
        return frees_at(partial(self._usage_s, subject), most_s, DAYS[limit.per], self.now)

    def _refusal(self, user: str, gpus: int) -> Reason | None:
        account = self.shares.accounts.get(user)
        groups = (f"@{group}" for group in account.groups) if account else ()
        for subject in (user, *(group for group in groups if group in self.limits)):
            limit = self.of(subject)
            if limit.gpus is not None and (held := self.gpus_held(subject)) + gpus > limit.gpus:
                return Reason("quota", limit.gpus, held, "GPUs", subject)
            if limit.gpu_hours is not None:
                used = self.hours_used(subject, limit.per)
                if used >= limit.gpu_hours:
                    unit = f"GPU-h per {limit.per}"
                    return Reason("gpu_hours", limit.gpu_hours, used, unit, subject)
        return None

    def _users(self, subject: str) -> Iterable[str]:
        if not subject.startswith("@"):
            return (subject,)
        accounts = self.shares.accounts.values()
        return (each.user for each in accounts if subject[1:] in each.groups)

    def _usage_s(self, subject: str, day: int) -> float:
        accounts = self.shares.accounts
        found = (accounts[user] for user in self._users(subject) if user in accounts)
        return math.fsum(each.since(day, self.now) for each in found)

    @property
    def _today(self) -> int:
        return int(self.now // DAY_S)
