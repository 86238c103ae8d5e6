"""Makes shapes monotone, by pooling adjacent violators (Lucid paper, 3.6.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.isotonic import isotonic_regression

from carmad.models import Additive, Shape


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
