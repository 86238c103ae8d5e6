"""What the number of submissions to come is foretold from: the clock, and how many there were.

The policy that asks and the training that answers compute these features with this one function.
Counts are per interval of ten minutes, `(jobs, GPUs they asked for)`, one interval after another. A
forecast looks `AHEAD` intervals ahead, as the models of Lucid's artifact do (simulation/predictor:
nothing younger than an hour, softened by its neighbours; the paper, 3.5.2, does not say).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean, median, pstdev

INTERVAL_S = 600
AHEAD = 5  # from the last interval that is over to the one that is foretold
HOUR, DAY, WEEK = 6, 144, 1008  # in intervals
LOOK_BACK = WEEK + 2 - AHEAD  # how many counts the features are computed from

AGO = {"1h": HOUR, "3h": 3 * HOUR, "1d": DAY, "1w": WEEK}
WINDOWS = {"1h": HOUR, "3h": 3 * HOUR, "1d": DAY}

Counts = Sequence[tuple[int, int]]


def foretold(now: float) -> float:
    """When the interval begins that a forecast made `now` is about (Unix s)."""
    return (now // INTERVAL_S - 1 + AHEAD) * INTERVAL_S


def features(counts: Counts, now: float) -> dict[str, float]:
    """Of the interval that begins at `foretold(now)`; the last count is of the last interval that
    was over by `now`. What too short a past does not tell is left out."""
    recent = counts[-LOOK_BACK:]
    jobs, gpus = ([count[n] for count in recent] for n in (0, 1))
    return calendar(foretold(now)) | _rolling("jobs", jobs) | _rolling("gpus", gpus)


def calendar(at: float) -> dict[str, float]:
    """Hours and days are UTC's: what they mean where the users are is learned with them.

    Month and week are left out: of a month that has not been, the past ones tell nothing.
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
        near = _until(counts, lag - 1, 3)  # the interval so long ago, amid its neighbours
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
    """`length` counts, the last one `lag` intervals before the one foretold; none if too few."""
    end = len(counts) - (lag - AHEAD)
    return counts[end - length : end] if end >= length else ()
