"""Which job names stand for those that are much alike: affinity propagation over Levenshtein's
distance (Lucid paper, 3.5.3)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable

import numpy as np
from sklearn.cluster import AffinityPropagation
from sklearn.exceptions import ConvergenceWarning

from carmad.models.names import LETTERS, distance

KEPT = 400  # distinct names, the most frequent ones: every pair of them is compared
DAMPING = 0.7  # with the artifact's 0.9, few names as much alike as ours settle on one exemplar
ROUNDS = 1000


def exemplars(names: Iterable[str]) -> tuple[str, ...]:
    """In the order of the alphabet. Where no grouping settles, each frequent name is its own."""
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
