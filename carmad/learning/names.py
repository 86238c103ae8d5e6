"""Finds exemplars of similar job names by affinity propagation over the Levenshtein distance
(Lucid paper, 3.5.3)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable

import numpy as np
from sklearn.cluster import AffinityPropagation
from sklearn.exceptions import ConvergenceWarning

from carmad.models.names import LETTERS, distance

KEPT = 400  # the most frequent distinct names: every pair of them is compared
DAMPING = 0.7  # at the artifact's 0.9, few sets of similar names converge to one exemplar
ROUNDS = 1000


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
        affinity="precomputed", damping=DAMPING, max_iter=ROUNDS, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chosen = grouping.fit(similarity).cluster_centers_indices_
    return tuple(frequent[n] for n in chosen) or tuple(frequent)
