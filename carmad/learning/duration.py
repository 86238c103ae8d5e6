"""Workload Estimate Model (Lucid paper, 3.5.3): how long a job will run, alone on its GPUs.

A row of the table is a job that ended:

- `user`, `name`: texts; `group`: equal for runs of the same job, "" if unknown
- `gpus`: how many it asked for
- `submitted_at`: Unix s; `duration_s`: how long it ran; `ended_at`: Unix s; without it, the job is
  assumed to have started at once
- if it was profiled: `gpu_utilization`, `memory_utilization` (fractions, 0–1), `peak_mib`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import fmean, median
from typing import Any

from carmad.core.history import Durations
from carmad.learning.additive import Origin, fit
from carmad.learning.monotone import monotone
from carmad.learning.names import exemplars
from carmad.models import Additive
from carmad.models.names import bucket
from carmad.models.workload import PROFILE, features

Row = Mapping[str, Any]
HELD_OUT = 0.2  # the latest part, for the errors
SHORTEST_S = 1.0  # a job that failed at once has no logarithm


def table(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, float | str]]:
    """What was known of each job when it was submitted. `rows` are in order of submission, `names`
    are the exemplars."""
    ended = iter(sorted(rows, key=_ended_at))
    next_ended = next(ended, None)
    by_user, by_group = Durations(), Durations()
    found = []
    for row in rows:
        while next_ended is not None and _ended_at(next_ended) <= row["submitted_at"]:
            by_user.add(next_ended["user"], next_ended["duration_s"])
            by_group.add(next_ended["group"], next_ended["duration_s"])
            next_ended = next(ended, None)
        found.append(_features(row, names, by_user, by_group))
    return found


def train(rows: Sequence[Row], source: str, at: float) -> Additive:
    """A model trained on all rows; its errors are those of a model trained without the latest
    fifth of the jobs, on that fifth. `at` is now.

    It predicts the logarithm, which is not in the paper: mistaking one day for two counts the same
    as mistaking one minute for two, so that a few long jobs do not dominate.
    """
    ordered = sorted(rows, key=lambda row: float(row["submitted_at"]))
    seen = int(len(ordered) * (1 - HELD_OUT))
    origin = Origin("seconds that a job runs alone", source, at)
    judged, names = fitted(ordered[:seen], origin)
    errors = measured(judged, table(ordered, names)[seen:], ordered[seen:])
    model, _ = fitted(ordered, replace(origin, errors=errors))
    return model


def fitted(ordered: Sequence[Row], origin: Origin) -> tuple[Additive, tuple[str, ...]]:
    """The model, and the exemplars of its names."""
    names = exemplars(row["name"] for row in ordered)
    durations = [max(SHORTEST_S, row["duration_s"]) for row in ordered]
    model = fit(table(ordered, names), durations, origin, link="log", alone="gpus")
    return monotone(model, "gpus"), names


def measured(
    model: Additive, known: Sequence[Mapping[str, float | str]], rows: Sequence[Row]
) -> tuple[tuple[str, float], ...]:
    truth = [max(SHORTEST_S, row["duration_s"]) for row in rows]
    foretold = [max(SHORTEST_S, model.predict(values)) for values in known]
    logs = [log(value) for value in foretold], [log(value) for value in truth]
    factors = (abs(one - other) for one, other in zip(*logs, strict=True))
    return (
        ("R²", r_squared(foretold, truth)),
        ("R² of the logarithm", r_squared(*logs)),
        ("median of |log(foretold / real)|", median(factors)),
    )


def r_squared(foretold: Sequence[float], truth: Sequence[float]) -> float:
    mean = fmean(truth)
    left = sum((one - other) ** 2 for one, other in zip(foretold, truth, strict=True))
    return 1 - left / (sum((value - mean) ** 2 for value in truth) or 1.0)


def _features(
    row: Row, names: Sequence[str], by_user: Durations, by_group: Durations
) -> dict[str, float | str]:
    return features(
        row["user"],
        bucket(row["name"], tuple(names)),
        row["gpus"],
        row["submitted_at"],
        by_user.of(row["user"]),
        by_group.of(row["group"]) if row["group"] else (),
        {each: row[each] for each in PROFILE if row.get(each) is not None},
    )


def _ended_at(row: Row) -> float:
    return float(row.get("ended_at") or row["submitted_at"] + row["duration_s"])
