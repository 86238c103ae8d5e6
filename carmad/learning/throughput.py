"""Throughput Predict Model (Lucid paper, 3.5.2): how many jobs, or GPUs, will be requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from carmad.learning.additive import Origin, fit
from carmad.models import Additive
from carmad.models.traffic import AHEAD, INTERVAL_S, LOOK_BACK, Counts, features

HELD_OUT = 0.2  # the latest part, for the errors
What = Literal["jobs", "gpus"]
ABOUT = {
    "jobs": "jobs submitted in ten minutes, 50 minutes from now",
    "gpus": "GPUs requested in ten minutes, 50 minutes from now",
}


def table(counts: Counts, begin: float) -> list[dict[str, float]]:
    """What was known of each interval when it was predicted; the first one begins at `begin`
    (Unix s, a multiple of `INTERVAL_S`)."""
    rows = []
    for n in range(len(counts)):
        known = max(0, n - AHEAD + 1)
        now = begin + (n - AHEAD + 1) * INTERVAL_S
        rows.append(features(counts[max(0, known - LOOK_BACK) : known], now))
    return rows


def train(counts: Counts, begin: float, what: What, source: str, at: float) -> Additive:
    """A model trained on all `counts`; its errors are those of a model trained without the latest
    fifth, on that fifth. `at` is now."""
    rows, targets = table(counts, begin), _targets(counts, what)
    seen = int(len(rows) * (1 - HELD_OUT))
    origin = Origin(ABOUT[what], source, at)
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
