"""The features that models predict from. Whoever asks a model and whoever trains it compute them
with these functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from statistics import fmean, median, pstdev

from carmad.learning.models import Additive

# -- similar job names: each is replaced by its nearest exemplar (Lucid paper, 3.5.3), which
# `carmad.learning.training.lucid` learns

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


# -- the number of submissions: the time, and past counts. Counts are per interval of ten minutes,
# `(jobs, GPUs they asked for)`, in order. A forecast looks `AHEAD` intervals ahead, like the models
# of Lucid's artifact (simulation/predictor: nothing more recent than an hour, smoothed with its
# neighbours; the paper, 3.5.2, does not say)

INTERVAL_S = 600
AHEAD = 5  # from the last complete interval to the predicted one
HOUR, DAY, WEEK = 6, 144, 1008  # in intervals
LOOK_BACK = WEEK + 2 - AHEAD  # how many counts the features are computed from

AGO = {"1h": HOUR, "3h": 3 * HOUR, "1d": DAY, "1w": WEEK}
WINDOWS = {"1h": HOUR, "3h": 3 * HOUR, "1d": DAY}

Counts = Sequence[tuple[int, int]]


def foretold(now: float) -> float:
    """When the interval predicted at `now` begins (Unix s)."""
    return (now // INTERVAL_S - 1 + AHEAD) * INTERVAL_S


def traffic_features(counts: Counts, now: float) -> dict[str, float]:
    """Features of the interval that begins at `foretold(now)`; the last of `counts` is the last
    interval complete at `now`. Features that need a longer past are left out."""
    recent = counts[-LOOK_BACK:]
    jobs, gpus = ([count[n] for count in recent] for n in (0, 1))
    return calendar(foretold(now)) | _rolling("jobs", jobs) | _rolling("gpus", gpus)


def calendar(at: float) -> dict[str, float]:
    """Hours and days are in UTC; what they mean in the users' time zone is learned.

    Month and week are left out: past months say nothing about one not seen yet.
    """
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "hour": float(moment.hour),
        "minute": float(moment.minute),
        "weekday": float(moment.weekday()),
        "day": float(moment.day),
    }


def _rolling(name: str, counts: Sequence[int]) -> dict[str, float]:
    found = {}
    for ago, lag in AGO.items():
        near = _until(counts, lag - 1, 3)  # that interval and its neighbours
        if near:
            found[f"{name}_{ago}_ago"] = float(near[1])
            found[f"{name}_{ago}_soft"] = 0.25 * near[0] + 0.5 * near[1] + 0.25 * near[2]
    for window, length in WINDOWS.items():
        last = _until(counts, AHEAD, length)
        if last:
            found[f"{name}_{window}_mean"] = fmean(last)
            found[f"{name}_{window}_median"] = float(median(last))
    hour, earlier = _until(counts, AHEAD, HOUR), _until(counts, AHEAD + HOUR, HOUR)
    if hour:
        found[f"{name}_1h_deviation"] = pstdev(hour)
    if hour and earlier:
        found[f"{name}_trend"] = fmean(hour) - fmean(earlier)
    return found


def _until(counts: Sequence[int], lag: int, length: int) -> Sequence[int]:
    """`length` counts, the last one `lag` intervals before the predicted one; none if too few."""
    end = len(counts) - (lag - AHEAD)
    return counts[end - length : end] if end >= length else ()


# -- a job's duration (Lucid paper, 3.5.3): who submits it, under what name, for how many GPUs,
# when, what became of earlier runs, and its profile where there is one

PROFILE = ("gpu_utilization", "memory_utilization", "peak_mib")  # fractions 0–1; MiB


def duration_features(
    user: str,
    bucket: str,
    gpus: int,
    submitted_at: float,
    of_user: Sequence[float] = (),
    of_group: Sequence[float] = (),
    profile: dict[str, float] | None = None,
) -> dict[str, float | str]:
    """`bucket` is the exemplar that its name is nearest to. `of_user` and `of_group` are how long
    (s) the latest jobs of the user, and the latest runs of this same job, took, the newest last;
    `profile` has any of `PROFILE`. What is not known is left out."""
    found: dict[str, float | str] = {
        "user": user,
        "name": bucket,
        "gpus": float(gpus),
    }
    moment = calendar(submitted_at)
    found |= {each: moment[each] for each in ("hour", "weekday", "day")}
    if of_user:
        found |= {"user_mean_s": fmean(of_user), "user_last_s": of_user[-1]}
    if of_group:
        found |= {"group_mean_s": fmean(of_group), "group_last_s": of_group[-1]}
    return found | {each: profile[each] for each in PROFILE if profile and each in profile}


def exemplars_of(model: Additive) -> tuple[str, ...]:
    """The names that the model tells apart."""
    return next((s.bins.categories for s in model.shapes if s.name == "name"), ())
