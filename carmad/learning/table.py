"""Training tables, from a copy of the daemon's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from statistics import median_low

from carmad.core.company import beside
from carmad.core.history import Submission
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
MOST_MET, LEAST_MET = 1_000, 50  # step times of a user beside others, if the median user has fewer
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
    """Slowdowns that jobs reported beside others, and when these jobs ended, the oldest first; of
    each user the latest, as many as the median user has."""
    everybodys = (list(islice(_met(store, user), MOST_MET)) for user in store.users())
    by_user = [told for told in everybodys if told]
    most = max(LEAST_MET, median_low(map(len, by_user))) if by_user else 0
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
            yield job.ended_at or 0.0, Beside(beside(each.own, each.other, each.mps), ratio, pair)


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
