"""Lucid's two models (Lucid paper, 3.5), both GA²Ms: how long a job will run, alone on its GPUs
(Workload Estimate Model), and how many jobs, or GPUs, will be requested (Throughput Predict Model).

A row of the duration model's table is a job that ended:

- `user`, `name`: texts; `group`: equal for runs of the same job, "" if unknown
- `gpus`: how many it asked for
- `submitted_at`: Unix s; `duration_s`: how long it ran; `ended_at`: Unix s; without it, the job is
  assumed to have started at once
- if it was profiled: `gpu_utilization`, `memory_utilization` (fractions, 0–1), `peak_mib`
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from interpret.glassbox import ExplainableBoostingRegressor
from sklearn.cluster import AffinityPropagation
from sklearn.exceptions import ConvergenceWarning
from sklearn.isotonic import isotonic_regression

from carmad.core.jobs.history import Durations
from carmad.learning.features import (
    AHEAD,
    INTERVAL_S,
    LETTERS,
    LOOK_BACK,
    PROFILE,
    Counts,
    bucket,
    distance,
    duration_features,
    traffic_features,
)
from carmad.learning.models import Additive, Bins, Pair, Shape, Values

# -- GA²Ms, as explainable boosting machines (interpret) converted to plain values; and their shapes
# made monotone, by pooling adjacent violators (3.6.1)

MOST_BINS = 64  # per numeric feature: enough to show its shape, few enough to read
ROUNDS = 1000  # over all features; most bags stop earlier, when nothing improves any more
BAGS = 8  # the model is the mean of so many machines
SEED = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """What a trained model says about itself."""

    about: str
    source: str
    trained_at: float
    errors: tuple[tuple[str, float], ...] = ()


def fit(
    table: Sequence[Values],
    targets: Sequence[float],
    origin: Origin,
    *,
    link: Literal["identity", "log"] = "identity",
    interactions: int = 10,
    alone: str | None = None,
) -> Additive:
    """`table` is in order of time, with one row per target and at least 2·BAGS rows. With the link
    `log`, targets must be positive, and errors count by ratio. The feature `alone` is in no pair:
    its shape is its whole effect.

    Features that are missing in every row are left out. Ten pairs is what Lucid's artifact uses
    for throughput (simulation/predictor).
    """
    names = tuple(dict.fromkeys(name for row in table for name in row))
    types = ["nominal" if _is_text(name, table) else "continuous" for name in names]
    machine = ExplainableBoostingRegressor(
        feature_names=names,
        feature_types=types,
        interactions=min(interactions, len(names) * (len(names) - 1) // 2),
        exclude=[pair for pair in combinations(names, 2) if alone in pair],
        max_bins=MOST_BINS,
        max_rounds=ROUNDS,
        outer_bags=BAGS,
        learning_rate=0.1,  # the artifact's; interpret's own takes longer and is no better here
        random_state=SEED,
        n_jobs=1,  # the CPUs are for the jobs
    )
    rows = np.array([[row.get(name) for name in names] for row in table], dtype=object)
    values = np.asarray(targets, dtype=float)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Missing values detected")
        machine.fit(rows, np.log(values) if link == "log" else values, bags=_bags(len(table)))
    return convert(machine, origin, link, len(table))


def convert(machine: Any, origin: Origin, link: Literal["identity", "log"], rows: int) -> Additive:
    """A plain value with the same predictions as interpret's regressor."""
    shapes, pairs = [], []
    terms = zip(machine.term_features_, machine.term_scores_, machine.bin_weights_, strict=True)
    for features, scores, weights in terms:
        if len(features) == 1:
            bins = _bins(machine, features[0], order=1)
            shapes.append(Shape(bins, tuple(scores.tolist()), tuple(weights.tolist())))
        else:
            first, second = (_bins(machine, feature, order=2) for feature in features)
            matrix = tuple(tuple(row) for row in scores.tolist())
            importance = float(np.average(np.abs(scores), weights=weights))
            pairs.append(Pair((first, second), matrix, importance))
    return Additive(
        about=origin.about,
        source=origin.source,
        intercept=float(machine.intercept_),
        shapes=tuple(shapes),
        pairs=tuple(pairs),
        link=link,
        rows=rows,
        trained_at=origin.trained_at,
        errors=origin.errors,
    )


def _bags(rows: int) -> Any:
    """For each bag, its training rows (1) and its validation rows (-1), which are contiguous.

    By default, interpret would scatter the validation rows. But jobs come in bursts with similar
    features, so that with similar rows on both sides, memorising would look like learning.
    """
    bags = np.ones((rows, BAGS), dtype=np.int8)
    for n, stretch in enumerate(np.array_split(np.arange(rows), BAGS)):
        bags[stretch, n] = -1
    return bags


def _bins(machine: Any, feature: int, order: int) -> Bins:
    """Pairs may have coarser bins than shapes: interpret keeps both, and the last ones apply to
    all higher orders."""
    kept = machine.bins_[feature]
    found = kept[min(order, len(kept)) - 1]
    name = str(machine.feature_names_in_[feature])
    if isinstance(found, dict):
        return Bins(name, categories=tuple(sorted(found, key=found.__getitem__)))
    return Bins(name, cuts=tuple(found.tolist()))


def _is_text(name: str, table: Sequence[Mapping[str, object]]) -> bool:
    return any(isinstance(row.get(name), str) for row in table)


def monotone(model: Additive, feature: str) -> Additive:
    """The model with the feature's shape made increasing or decreasing, whichever changes less over
    the training rows: neither the paper nor its artifact (direction "auto") says which."""
    shapes = tuple(_bent(s) if s.bins.feature == feature else s for s in model.shapes)
    return replace(model, shapes=shapes)


def _bent(shape: Shape) -> Shape:
    """The bins of missing and unseen values are not ordered, and are left as they are."""
    scores, counts = (np.array(values[1:-1]) for values in (shape.scores, shape.counts))
    weights = np.maximum(counts, 1e-9)  # an empty bin yields to its neighbours
    bent = min(
        (isotonic_regression(scores, sample_weight=weights, increasing=up) for up in (True, False)),
        key=lambda curve: float(weights @ (curve - scores) ** 2),
    )
    return replace(shape, scores=(shape.scores[0], *bent.tolist(), shape.scores[-1]))


# -- exemplars of similar job names, by affinity propagation over the Levenshtein distance (3.5.3)

KEPT = 400  # the most frequent distinct names: every pair of them is compared
DAMPING = 0.7  # at the artifact's 0.9, few sets of similar names converge to one exemplar
GROUPING_ROUNDS = 1000


def exemplars(names: Iterable[str]) -> tuple[str, ...]:
    """In alphabetical order. If the grouping does not converge, each frequent name is its own."""
    frequent = sorted(name for name, _ in Counter(names).most_common(KEPT))
    if len(frequent) < 3:
        return tuple(frequent)
    similarity = np.zeros((len(frequent), len(frequent)))
    for n, name in enumerate(frequent):
        for m in range(n):
            apart = distance(name[:LETTERS], frequent[m][:LETTERS])
            similarity[n, m] = similarity[m, n] = -apart
    grouping = AffinityPropagation(
        affinity="precomputed", damping=DAMPING, max_iter=GROUPING_ROUNDS, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chosen = grouping.fit(similarity).cluster_centers_indices_
    return tuple(frequent[n] for n in chosen) or tuple(frequent)


# -- durations

Row = Mapping[str, Any]
HELD_OUT = 0.2  # the latest part, for the errors
SHORTEST_S = 1.0  # a job that failed at once has no logarithm


def duration_table(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, float | str]]:
    """What was known of each job when it was submitted. `rows` are in order of submission, `names`
    are the exemplars."""
    ended = iter(sorted(rows, key=_end_of))
    next_ended = next(ended, None)
    by_user, by_group = Durations(), Durations()
    found = []
    for row in rows:
        while next_ended is not None and _end_of(next_ended) <= row["submitted_at"]:
            by_user.add(next_ended["user"], next_ended["duration_s"])
            by_group.add(next_ended["group"], next_ended["duration_s"])
            next_ended = next(ended, None)
        found.append(_duration_features(row, names, by_user, by_group))
    return found


def train_duration(rows: Sequence[Row], source: str, at: float) -> Additive:
    """A model trained on all rows; its errors are those of a model trained without the latest
    fifth of the jobs, on that fifth. `at` is now.

    It predicts the logarithm, which is not in the paper: mistaking one day for two counts the same
    as mistaking one minute for two, so that a few long jobs do not dominate.
    """
    ordered = sorted(rows, key=lambda row: float(row["submitted_at"]))
    seen = int(len(ordered) * (1 - HELD_OUT))
    origin = Origin("seconds that a job runs alone", source, at)
    judged, names = fit_jobs(ordered[:seen], origin)
    errors = measure_duration(judged, duration_table(ordered, names)[seen:], ordered[seen:])
    model, _ = fit_jobs(ordered, replace(origin, errors=errors))
    return model


def fit_jobs(ordered: Sequence[Row], origin: Origin) -> tuple[Additive, tuple[str, ...]]:
    """The model, and the exemplars of its names."""
    names = exemplars(row["name"] for row in ordered)
    durations = [max(SHORTEST_S, row["duration_s"]) for row in ordered]
    model = fit(duration_table(ordered, names), durations, origin, link="log", alone="gpus")
    return monotone(model, "gpus"), names


def measure_duration(
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


def _duration_features(
    row: Row, names: Sequence[str], by_user: Durations, by_group: Durations
) -> dict[str, float | str]:
    return duration_features(
        row["user"],
        bucket(row["name"], tuple(names)),
        row["gpus"],
        row["submitted_at"],
        by_user.of(row["user"]),
        by_group.of(row["group"]) if row["group"] else (),
        {each: row[each] for each in PROFILE if row.get(each) is not None},
    )


def _end_of(row: Row) -> float:
    return float(row.get("ended_at") or row["submitted_at"] + row["duration_s"])


# -- throughput

What = Literal["jobs", "gpus"]
ABOUT_TRAFFIC = {
    "jobs": "jobs submitted in ten minutes, 50 minutes from now",
    "gpus": "GPUs requested in ten minutes, 50 minutes from now",
}


def traffic_table(counts: Counts, begin: float) -> list[dict[str, float]]:
    """What was known of each interval when it was predicted; the first one begins at `begin`
    (Unix s, a multiple of `INTERVAL_S`)."""
    rows = []
    for n in range(len(counts)):
        known = max(0, n - AHEAD + 1)
        now = begin + (n - AHEAD + 1) * INTERVAL_S
        rows.append(traffic_features(counts[max(0, known - LOOK_BACK) : known], now))
    return rows


def train_traffic(counts: Counts, begin: float, what: What, source: str, at: float) -> Additive:
    """A model trained on all `counts`; its errors are those of a model trained without the latest
    fifth, on that fifth. `at` is now."""
    rows, targets = traffic_table(counts, begin), _targets(counts, what)
    seen = int(len(rows) * (1 - HELD_OUT))
    origin = Origin(ABOUT_TRAFFIC[what], source, at)
    judged = fit(rows[:seen], targets[:seen], origin)
    foretold = [max(0.0, judged.predict(row)) for row in rows[seen:]]
    last = targets[seen - AHEAD : len(targets) - AHEAD]
    errors = (
        ("MAE", _mae(foretold, targets[seen:])),
        ("MAE of the last count known", _mae(last, targets[seen:])),
    )
    return fit(rows, targets, replace(origin, errors=errors))


def _targets(counts: Counts, what: What) -> list[float]:
    return [float(jobs if what == "jobs" else gpus) for jobs, gpus in counts]


def _mae(foretold: Sequence[float], truth: Sequence[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(foretold, truth, strict=True))
