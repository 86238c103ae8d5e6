"""Training tables, from a copy of the daemon's database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from statistics import median_low

from carmad.core.history import Submission
from carmad.core.slowdown import beside
from carmad.core.types import ENDED, Job
from carmad.learning.duration import Row
from carmad.learning.interference import Beside
from carmad.models.traffic import INTERVAL_S
from carmad.models.workload import PROFILE
from carmad.store.sql import SqlStore
from carmad.store.table import Cell, row

MOST_RUNS = 50_000  # the latest ones, to limit memory and time
MOST_OF_USER = 1_000  # unless the median user has more: no user may dominate
MOST_RATIO = 20.0  # reports are the users' own words; the largest ever measured is 11 (Gavel, V100)
MOST_MET, LEAST_MET = 300, 50  # step times of a user beside others, even if others have fewer
PAGE = 500  # jobs read at a time: their environments are large
KEPT = ("user", "group", "name", "gpus", "submitted_at", "ended_at", "duration_s")


def runs(store: SqlStore) -> list[Row]:
    """The latest jobs that ran, in order of submission, as rows for `carmad.learning.duration`;
    limited per user."""
    users = store.users()
    if not users:
        return []
    share = max(MOST_OF_USER, MOST_RUNS // len(users))
    by_user = [list(islice(_newest_first(store, user), share)) for user in users]
    most = max(MOST_OF_USER, median_low(map(len, by_user)))
    found = (each for rows in by_user for each in rows[:most])
    return sorted(found, key=lambda one: float(one["submitted_at"]))[-MOST_RUNS:]


def companies(store: SqlStore) -> list[tuple[float, Beside]]:
    """Slowdowns that jobs reported beside others, and when these jobs ended, the oldest first.

    Reports are the users' own words. Of each user every pair counts once, with the median of its
    ratios, and of these the latest, as many as the user has who is a third of the way up: from
    three users on, nobody has more than a third of all, or `LEAST_MET`.
    """
    everybodys = (_medians(islice(_met(store, user), MOST_MET)) for user in store.users())
    by_user = sorted((told for told in everybodys if told), key=len)
    most = max(LEAST_MET, len(by_user[(len(by_user) - 1) // 3])) if by_user else 0
    return sorted((row for told in by_user for row in told[:most]), key=itemgetter(0))


def counts(submissions: Sequence[Submission], now: float) -> tuple[list[tuple[int, int]], float]:
    """Jobs submitted, and GPUs that they asked for, in each complete interval from the first
    submission on; and when the first interval began. `submissions` are in order."""
    if not submissions:
        return [], now
    first, end = (int(at // INTERVAL_S) for at in (submissions[0][0], now))
    jobs, gpus = [0] * (end - first), [0] * (end - first)
    for at, wanted in submissions:
        if (n := int(at // INTERVAL_S) - first) < len(jobs):
            jobs[n] += 1
            gpus[n] += wanted
    return list(zip(jobs, gpus, strict=True)), first * INTERVAL_S


def _met(store: SqlStore, user: str) -> Iterator[tuple[float, Beside]]:
    """The newest first."""
    for job in _jobs(store, user):
        for each in job.company:
            # Recurring jobs share a profile: their later runs are the same pair.
            pair = "|".join(sorted((repr(each.own), repr(each.other))))
            ratio = min(each.ratio, MOST_RATIO)
            values = beside(each.own, each.other, each.mps)
            yield job.ended_at or 0.0, Beside(values, ratio, pair, user)


def _medians(told: Iterable[tuple[float, Beside]]) -> list[tuple[float, Beside]]:
    """One row per features, with the median ratio, in the order of their latest."""
    by_values: dict[tuple[tuple[str, float], ...], list[tuple[float, Beside]]] = {}
    for at, met in told:
        by_values.setdefault(tuple(met.values.items()), []).append((at, met))
    return [
        (alike[0][0], replace(alike[0][1], ratio=median_low(met.ratio for _, met in alike)))
        for alike in by_values.values()
    ]


def _newest_first(store: SqlStore, user: str) -> Iterator[Row]:
    cells = map(row, _jobs(store, user))
    return (_as_known(each) for each in cells if each["duration_s"] is not None)


def _jobs(store: SqlStore, user: str) -> Iterator[Job]:
    """A user's ended jobs, the newest first."""
    page = store.history(user=user, states=ENDED, limit=PAGE)
    while page:
        yield from page
        page = store.history(user=user, states=ENDED, before=page[-1].id, limit=PAGE)


def _as_known(cells: Mapping[str, Cell]) -> Row:
    """What was known of the job when it was submitted. Its own profile is left out: short jobs have
    none, which would reveal their duration."""
    known = {name: cells[name] for name in KEPT}
    if cells["profile_of"] is None:
        return known
    profile = {name: cells[name] for name in PROFILE if name in cells}
    return known | profile | {"peak_mib": cells["profile_peak_mib"]}
