"""How long recurring jobs run, by random forest regression (A-SRPT paper, IV-C-3): 100 trees split
by squared error, on the group that a job is a run of and on its user.

The paper predicts iterations; a command does not reveal them, so this predicts seconds. Both
features are names, which the forest needs as numbers. The paper uses hashes; a tree uses only
their order, so a name's rank among all names is equivalent, and fits scikit-learn's 32-bit floats,
which a hash does not.

What the daemon learns is kept within the range of the group's own runs (`train`): in a tree whose
sample has none of them, the group gets the value of its neighbours in the order of names, which may
be jobs of another user.

For an unknown name the paper predicts 0. So the forest's only possible predictions are one number
per group, and those numbers are the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeAlias

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from carmad.errors import CarmaError
from carmad.learning.models import Lookup
from carmad.learning.training.lucid import HELD_OUT, Row

ABOUT = "seconds that a run of a job takes alone, from its earlier runs"
TREES = 100
NEAR = 0.1  # relative error up to which a prediction counts as right

# From the groups, the users and the seconds of runs: the seconds of each group.
Learner: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[float]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions for jobs of known groups."""

    mean_s: float  # of the absolute errors
    median_s: float
    right: float  # share with a relative error of at most NEAR
    known: float  # share of jobs whose group is known


def train(rows: Sequence[Row], source: str, at: float) -> Lookup:
    """A model trained on all rows whose group is known; rows as in `lucid`. Its errors
    are those of a model trained without the latest fifth of the jobs, on that fifth, along
    with those of the groups' means and medians. `at` is now.

    Raises CarmaError if no held-out job has run before.
    """
    ordered = sorted((row for row in rows if row["group"]), key=lambda row: row["submitted_at"])
    seen = int(len(ordered) * (1 - HELD_OUT))
    errors = tuple(_errors(ordered[:seen], ordered[seen:]))
    return Lookup(ABOUT, source, within_own(*_columns(ordered)), len(ordered), at, errors)


def grow(groups: Sequence[str], users: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    """The predictions, per group, of a forest trained on these runs."""
    names, of_group = np.unique(np.array(groups), return_inverse=True)
    _, of_user = np.unique(np.array(users), return_inverse=True)
    features = np.stack([of_group, of_user], axis=1).astype(np.float32)
    forest = RandomForestRegressor(TREES, criterion="squared_error", random_state=0)
    forest.fit(features, seconds)
    _, first = np.unique(of_group, return_index=True)
    told = forest.predict(features[first])
    return dict(zip(names.tolist(), told.tolist(), strict=True))


def within_own(
    groups: Sequence[str], users: Sequence[str], seconds: Sequence[float]
) -> dict[str, float]:
    """The forest's predictions, clipped to the range of each group's own runs."""
    least = _fold(groups, seconds, min)
    most = _fold(groups, seconds, max)
    told = grow(groups, users, seconds)
    return {group: min(max(told[group], least[group]), most[group]) for group in told}


def means(
    groups: Sequence[str], users: Sequence[str], seconds: Sequence[float]
) -> dict[str, float]:
    return _fold(groups, seconds, fmean)


def medians(
    groups: Sequence[str], users: Sequence[str], seconds: Sequence[float]
) -> dict[str, float]:
    return _fold(groups, seconds, median)


def measure(
    told: Mapping[str, float], groups: Sequence[str], seconds: Sequence[float]
) -> Errors | None:
    """None if no job's group is known."""
    pairs = [(told[g], real) for g, real in zip(groups, seconds, strict=True) if g in told]
    if not pairs:
        return None
    off = [abs(one - real) for one, real in pairs]
    right = sum(by <= NEAR * real for by, (_, real) in zip(off, pairs, strict=True))
    return Errors(fmean(off), median(off), right / len(pairs), len(pairs) / len(groups))


def since(model: Lookup, rows: Sequence[Row]) -> tuple[str, float] | None:
    """Its median error on these rows, named as in its `errors`; robust against a few outliers."""
    groups, _, seconds = _columns(rows)
    found = measure(model.seconds, groups, seconds)
    return ("median error (s)", found.median_s) if found else None


def _errors(seen: Sequence[Row], unseen: Sequence[Row]) -> Iterator[tuple[str, float]]:
    groups, _, seconds = _columns(unseen)
    for of, learner in (("", within_own), ("group's mean: ", means), ("group's median: ", medians)):
        found = measure(learner(*_columns(seen)), groups, seconds) if seen else None
        if found is None:
            raise CarmaError("no job has run again")
        yield f"{of}median error (s)", found.median_s
        yield f"{of}mean error (s)", found.mean_s
        yield f"{of}within {NEAR:.0%}", found.right
        if not of:
            yield "had run before", found.known


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[str], list[float]]:
    return (
        [row["group"] for row in rows],
        [row["user"] for row in rows],
        [row["duration_s"] for row in rows],
    )


def _fold(
    groups: Sequence[str], seconds: Sequence[float], fold: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    runs: dict[str, list[float]] = defaultdict(list)
    for group, each in zip(groups, seconds, strict=True):
        runs[group].append(each)
    return {group: fold(each) for group, each in runs.items()}
