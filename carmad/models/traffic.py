"""Features for forecasting the number of submissions: the time, and past counts.

Both the policy that forecasts and the training use this one function. Counts are per interval of
ten minutes, `(jobs, GPUs they asked for)`, in order. A forecast looks `AHEAD` intervals ahead, like
the models of Lucid's artifact (simulation/predictor: nothing more recent than an hour, smoothed
with its neighbours; the paper, 3.5.2, does not say).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean, median, pstdev

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


def features(counts: Counts, now: float) -> dict[str, float]:
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
