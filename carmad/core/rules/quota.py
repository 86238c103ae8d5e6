"""Limits of users and groups: GPUs held at once, GPU-hours, waiting jobs, bookings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from carmad.config import Limits
from carmad.core.jobs.spec import Owner
from carmad.core.placing.decision import Reason
from carmad.core.rules.share import DAY_S, HOUR_S, Shares, frees_at

DEFAULT = "default"  # the limit of each user without one
Subject = Owner | str  # a user; "@group" or `DEFAULT`
Period = Literal["day", "week", "month"]
DAYS: dict[Period, int] = {"day": 1, "week": 7, "month": 30}  # with the current one (UTC)


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
class Quotas:
    """The limits, and what counts against them at one moment."""

    limits: Mapping[str, Limit]
    settings: Limits
    held: Mapping[Owner, int]  # GPUs
    shares: Shares
    now: float
    _found: dict[tuple[Owner, int], Reason | None] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether jobs may have to wait for one."""
        return self.settings.gpus_per_user is not None or bool(self.limits)

    def refusal(self, owner: Owner, gpus: int) -> Reason | None:
        """Why a job of the user may not start now."""
        if (owner, gpus) not in self._found:
            self._found[owner, gpus] = self._refusal(owner, gpus)
        return self._found[owner, gpus]

    def of(self, subject: Subject) -> Limit:
        """The limit that applies to this subject."""
        if isinstance(subject, Owner):
            return limit_of(subject, self.limits, self.settings)
        if subject == DEFAULT:
            return default_limit(self.limits, self.settings)
        return self.limits.get(subject, Limit(subject))

    def gpus_held(self, subject: Subject) -> int:
        return sum(self.held.get(owner, 0) for owner in self._owners(subject))

    def hours_used(self, subject: Subject, per: Period) -> float:
        return self._usage_s(subject, self._today - DAYS[per] + 1) / HOUR_S

    def frees_at(self, subject: Subject) -> float:
        """When the subject's GPU-hours are below the limit again, if no more are used; infinite:
        never."""
        limit = self.of(subject)
        most_s = (limit.gpu_hours or 0.0) * HOUR_S
        return frees_at(partial(self._usage_s, subject), most_s, DAYS[limit.per], self.now)

    def _refusal(self, owner: Owner, gpus: int) -> Reason | None:
        account = self.shares.accounts.get(owner)
        groups = (f"@{group}" for group in account.groups) if account else ()
        limited = (group for group in groups if group in self.limits)
        subjects: tuple[Subject, ...] = (owner, *limited)
        for subject in subjects:
            limit = self.of(subject)
            name = limit.subject
            if limit.gpus is not None and (held := self.gpus_held(subject)) + gpus > limit.gpus:
                return Reason("quota", limit.gpus, held, "GPUs", name)
            if limit.gpu_hours is not None:
                used = self.hours_used(subject, limit.per)
                if used >= limit.gpu_hours:
                    unit = f"GPU-h per {limit.per}"
                    return Reason("gpu_hours", limit.gpu_hours, used, unit, name)
        return None

    def _owners(self, subject: Subject) -> Iterable[Owner]:
        if isinstance(subject, Owner):
            return (subject,)
        accounts = self.shares.accounts.values()
        return (each.owner for each in accounts if subject[1:] in each.groups)

    def _usage_s(self, subject: Subject, day: int) -> float:
        accounts = self.shares.accounts
        found = (accounts[owner] for owner in self._owners(subject) if owner in accounts)
        return math.fsum(each.since(day, self.now) for each in found)

    @property
    def _today(self) -> int:
        return int(self.now // DAY_S)
