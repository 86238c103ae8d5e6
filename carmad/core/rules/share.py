"""Fair share: what each user has used of the server, and in which order their jobs wait.

A GPU that several jobs share is divided evenly among them: two jobs on one GPU for an hour use half
a GPU-hour each. Measured activity would be cheap for jobs that hold memory without computing. It is
not known of every job (MPS, time slices), and could not be checked by hand.

A job without GPUs counts as the part of the server's GPUs that it has of the host (`worth`):
otherwise a user could fill the host with such jobs and keep the best rank.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from carmad.config import Fairness, Host
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec, Owner

K = TypeVar("K")
W = TypeVar("W")
HOUR_S = 3600.0
DAY_S = 86_400.0
DAYS_KEPT = 31
SAVED_EVERY_S = 60.0
RANKED_EVERY_S = 10.0  # sorting a long line anew takes milliseconds
Load = tuple[float, float]  # of a user's group and of the user, each divided by its weight
Standing = tuple[bool, int]  # of a waiting job: whether it is not urgent, and its user's rank
Days = tuple[tuple[int, float], ...]  # seconds per day (UTC, since 1970)
HostPart = tuple[int | None, int | None]  # CPUs and MiB of the host; None: not asked for
WEEK = 7  # days, with the current one
NOBODY = -1  # as a uid


@dataclass(frozen=True, slots=True)
class Account:
    """What one user has used, in GPU-seconds, as of `at`. The rest follows from `rate`: an account
    changes only when jobs start or end."""

    user: str
    uid: int = NOBODY
    groups: tuple[str, ...] = ()  # at the last submission
    at: float = 0.0
    used_s: float = 0.0  # halved with every half-life
    rate: float = 0.0  # GPUs held since `at`, shared ones in part
    host_rate: float = 0.0  # GPUs that the user's jobs without GPUs count as since `at`
    days: Days = ()  # used of GPUs, not halved
    urgent_rate: float = 0.0  # the part of `rate` that is of urgent jobs
    urgent: Days = ()  # used by those

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.user)

    def as_of(self, now: float, half_life_s: float) -> Account:
        """The same account as of `now`."""
        passed_s = now - self.at
        if passed_s <= 0:
            return self
        decay = math.log(2) / half_life_s
        kept = math.exp(-decay * passed_s)
        gained = (self.rate + self.host_rate) * -math.expm1(-decay * passed_s) / decay
        return replace(
            self,
            at=now,
            used_s=self.used_s * kept + gained,
            days=self._days(now, self.days, self.rate),
            urgent=self._days(now, self.urgent, self.urgent_rate),
        )

    def shift(self, by_s: float) -> Account:
        """The account with its times moved `by_s` later."""
        return replace(self, at=self.at + by_s)

    def since(self, day: int, now: float) -> float:
        """GPU-seconds used from the beginning of this day on, by jobs that held GPUs."""
        return _since(day, self._days(now, self.days, self.rate))

    def urgent_since(self, day: int, now: float) -> float:
        """GPU-seconds used from the beginning of this day on, by urgent jobs."""
        return _since(day, self._days(now, self.urgent, self.urgent_rate))

    def _days(self, now: float, before: Days, rate: float) -> Days:
        days, today = dict(before), int(now // DAY_S)
        if rate > 0:
            for day in range(max(int(self.at // DAY_S), today - DAYS_KEPT), today + 1):
                begin, end = max(self.at, day * DAY_S), min(now, (day + 1) * DAY_S)
                days[day] = days.get(day, 0.0) + rate * max(0.0, end - begin)
        return tuple((day, used) for day, used in days.items() if day > today - DAYS_KEPT)


def _since(day: int, days: Days) -> float:
    return math.fsum(used for each, used in days if each >= day)


def frees_at(used_s: Callable[[int], float], most_s: float, days: int, now: float) -> float:
    """When less than `most_s` was used in the last `days`, if no more is used; infinite: never.
    `used_s`: what was used from the beginning of a day on."""
    today = int(now // DAY_S)
    free = (day for day in range(today + 1, today + days + 1) if used_s(day - days + 1) < most_s)
    return next((day * DAY_S for day in free), math.inf)


def host_part(spec: JobSpec) -> HostPart:
    """What a job asks for of the host."""
    return spec.cpus, spec.host_memory_mib


def worth(part: HostPart, total: Host, gpus: int) -> float:
    """How many of the server's GPUs are as large a share of it as this part of the host: of its
    CPUs or of its memory, whichever share is larger."""
    shares = zip(part, (total.cpus, total.memory_mib), strict=True)
    return max(wanted * gpus / whole if wanted and whole else 0.0 for wanted, whole in shares)


class Rates:
    """What each user holds now, kept by the ledger: GPUs, and parts of the host by jobs without
    GPUs. Counted by how many share a GPU and by what is asked for, so that sums are exact whatever
    the order of changes."""

    def __init__(self) -> None:
        self.moved: dict[Owner, None] = {}  # users whose rate has changed
        self._shared: dict[tuple[Owner, bool], Counter[int]] = {}
        self._asked: dict[Owner, Counter[HostPart]] = {}  # of the host, by jobs without GPUs
        self._server = Host(), 0

    def convert_by(self, host: Host, gpus: int) -> None:
        """What the server has, by which parts of the host are converted into GPUs."""
        if self._server != (host, gpus):
            self._server = host, gpus
            self.moved.update(dict.fromkeys(self._asked))

    def hold(self, job: Job) -> None:
        """A job without GPUs has its part of the host from now on."""
        _count(self._asked, job.spec.owner, host_part(job.spec), 1)
        self.moved[job.spec.owner] = None

    def let_go(self, job: Job) -> None:
        _count(self._asked, job.spec.owner, host_part(job.spec), -1)
        self.moved[job.spec.owner] = None

    def change(self, before: Iterable[Job], after: Iterable[Job]) -> None:
        """The jobs on one GPU."""
        self._share(tuple(before), -1)
        self._share(tuple(after), 1)

    def of(self, owner: Owner) -> float:
        return self._of(owner, False) + self.urgent(owner)

    def urgent(self, owner: Owner) -> float:
        return self._of(owner, True)

    def host(self, owner: Owner) -> float:
        asked = self._asked.get(owner, Counter())
        return math.fsum(jobs * worth(its, *self._server) for its, jobs in asked.items())

    def _of(self, owner: Owner, urgent: bool) -> float:
        shared = self._shared.get((owner, urgent), Counter())
        return math.fsum(jobs / sharing for sharing, jobs in shared.items())

    def _share(self, jobs: tuple[Job, ...], sign: int) -> None:
        for job in jobs:
            owner = job.spec.owner
            _count(self._shared, (owner, job.spec.urgent), len(jobs), sign)
            self.moved[owner] = None


def bands(loads: Mapping[K, float], waiting: Set[K], width: float) -> dict[K, int]:
    """The band of each load, from 0. The first begins at the least load of those who wait, and each
    other one at the least that is beyond the one before: so nobody is behind for a difference from
    the least of less than `width`."""
    begins: list[float] = []
    for load in sorted(loads[each] for each in waiting):
        if not begins or (load > begins[-1] and load - begins[-1] >= width):
            begins.append(load)
    return {each: max(0, bisect_right(begins, load) - 1) for each, load in loads.items()}


def _count(counts: dict[W, Counter[K]], whose: W, what: K, number: int) -> None:
    its = counts.setdefault(whose, Counter())
    its[what] += number
    if not its[what]:
        del its[what]
    if not its:
        del counts[whose]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The order of users in line, as of `at`: from 1, those who have used least. Users who have
    used nothing, and those who count as equal to them, are not in it: they count as 0."""

    at: float = 0.0
    of: tuple[tuple[Owner, int], ...] = ()
    spent: frozenset[Owner] = frozenset()  # users who have spent their budget for urgent jobs


class Shares:
    """All accounts, and the users' ranks. `changed` has the accounts that are to be stored."""

    def __init__(
        self, settings: Fairness, accounts: Iterable[Account] = (), ranks: Ranks | None = None
    ) -> None:
        self._settings = settings
        self.accounts = {each.owner: each for each in accounts}
        self.ranks = ranks or Ranks()
        self._place = dict(self.ranks.of)
        self.changed: dict[Owner, Account] = {}
        self._saved_at = -math.inf

    def reconfigure(self, settings: Fairness, now: float) -> None:
        for owner in self.accounts:
            self._settle(owner, now)  # until now, the former half-life counts
        self._settings = settings
        self.ranks = replace(self.ranks, at=0.0)

    def note_groups(self, owner: Owner, groups: tuple[str, ...], now: float) -> None:
        old = self.accounts.get(owner)
        if old is None or old.groups != groups:
            self._put(replace(self._of(owner, now), groups=groups))

    def follow(self, rates: Rates, now: float) -> None:
        """Take over who holds what from now on."""
        for owner in rates.moved:
            old = self._of(owner, now)
            rate, host, urgent = rates.of(owner), rates.host(owner), rates.urgent(owner)
            if (old.rate, old.host_rate, old.urgent_rate) != (rate, host, urgent):
                settled = self._settle(owner, now)
                self._put(replace(settled, rate=rate, host_rate=host, urgent_rate=urgent))
        rates.moved.clear()
        # After a reboot, what was used since then is lost. Simulations need not pay for that.
        if self._settings.enabled is not False and now - self._saved_at >= SAVED_EVERY_S:
            self.save(now)

    def save(self, now: float) -> None:
        self._saved_at = now
        for owner, account in tuple(self.accounts.items()):
            if account.rate or account.host_rate:
                self._settle(owner, now)

    def rank(self, owner: Owner) -> int:
        return self._place.get(owner, 0)

    def standing(self, job: Job) -> Standing:
        owner = job.spec.owner
        return not (job.spec.urgent and owner not in self.ranks.spent), self.rank(owner)

    def urgent_s(self, owner: Owner, now: float) -> float:
        """GPU-seconds used by urgent jobs in the last week."""
        return self._of(owner, now).urgent_since(int(now // DAY_S) - WEEK + 1, now)

    def urgent_again_at(self, owner: Owner, now: float) -> float:
        """When the user's budget for urgent jobs is not spent any more; infinite: never."""
        account, most_s = self._of(owner, now), self._settings.urgent_gpu_hours * HOUR_S
        return frees_at(lambda day: account.urgent_since(day, now), most_s, WEEK, now)

    def rerank(self, now: float, waiting: Iterable[Owner] = (), gpus: int = 1) -> bool:
        """Rank the users anew, if it is time. True: the line must be sorted anew. `waiting`: the
        users who have jobs in line; `gpus`: the server's."""
        before = self.ranks
        if now - before.at < RANKED_EVERY_S:
            return False
        loads = {} if self._settings.enabled is False else self.loads(now)
        ranked = self._rank(loads, set(waiting), self._settings.band_hours * HOUR_S * max(gpus, 1))
        most_s = self._settings.urgent_gpu_hours * HOUR_S
        spent = frozenset(
            owner
            for owner, account in self.accounts.items()
            if (account.urgent or account.urgent_rate or not most_s)
            and self.urgent_s(owner, now) >= most_s
        )
        changed = (ranked, spent) != (self._place, before.spent)
        self.ranks, self._place = Ranks(now, tuple(ranked.items()), spent), ranked
        return changed

    def _rank(
        self, loads: Mapping[Owner, Load], waiting: set[Owner], band_s: float
    ) -> dict[Owner, int]:
        """Of users whose group is in another band, the group decides; of others, only those of the
        same group are compared."""
        waiting = waiting & loads.keys() or set(loads)
        groups: dict[str | Owner, dict[Owner, float]] = {}
        for owner, (_, own) in loads.items():
            groups.setdefault(self.group(owner) or owner, {})[owner] = own
        totals = {name: loads[next(iter(users))][0] for name, users in groups.items()}
        lined = {name: waiting & users.keys() for name, users in groups.items()}
        band = bands(totals, {name for name, users in lined.items() if users}, band_s)
        places = {
            owner: (band[name], inner)
            for name, users in groups.items()
            for owner, inner in bands(users, lined[name] or set(users), band_s).items()
        }
        least = min((totals[name] for name, users in lined.items() if users), default=0.0)
        first = 0 if least == 0 or least < band_s else 1
        ranks = {place: at for at, place in enumerate(sorted({*places.values()}), first)}
        return {owner: ranks[place] for owner, place in places.items() if ranks[place]}

    def loads(self, now: float) -> Mapping[Owner, Load]:
        """Each user's load. The lowest goes first: groups are compared, then users within one."""
        weights, used = self._settings.weights, {o: self.usage_s(o, now) for o in self.accounts}
        groups = {owner: self.group(owner) for owner in used}
        totals: dict[str, float] = {}
        for owner, group in groups.items():
            totals[group] = totals.get(group, 0.0) + used[owner]
        loads = {}
        for owner, group in groups.items():
            own = used[owner] / weights.get(owner.user, 1.0)
            loads[owner] = (totals[group] / weights[group] if group else own), own
        return loads

    def group(self, owner: Owner) -> str:
        """The user's first group with a weight, as it is called there; "": none, which counts as
        a group of one."""
        names = (f"@{name}" for name in self.accounts[owner].groups)
        return next((name for name in names if name in self._settings.weights), "")

    def usage_s(self, owner: Owner, now: float) -> float:
        """Usage in GPU-seconds, halved with every half-life."""
        return self._of(owner, now).as_of(now, self._half_life_s).used_s

    def copy(self) -> Shares:
        """A copy for other threads."""
        return Shares(self._settings, self.accounts.values(), self.ranks)

    @property
    def _half_life_s(self) -> float:
        return self._settings.half_life_days * DAY_S

    def _of(self, owner: Owner, now: float) -> Account:
        return self.accounts.get(owner) or Account(owner.user, owner.uid, at=now)

    def _settle(self, owner: Owner, now: float) -> Account:
        return self._put(self._of(owner, now).as_of(now, self._half_life_s))

    def _put(self, account: Account) -> Account:
        self.accounts[account.owner] = self.changed[account.owner] = account
        return account
