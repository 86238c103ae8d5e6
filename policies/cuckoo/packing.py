"""Which jobs to pack (Cuckoo paper, 3.3.2, algorithm 3), and which pairs to split again (3.3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import rustworkx
from scipy.optimize import linear_sum_assignment

from policies.cuckoo.interleaving import Numbers

Edge = tuple[int, int, float]

KEPT = 8  # of a job's edges, see `best_edges`
GRAIN = 1_000_000  # the library's weights are integers


def best_edges(weights: Numbers) -> list[Edge]:
    """A few edges of a complete graph that contain its maximum-weight matching, except for at most
    0.25 % of the weight (with 100 to 500 random jobs). Matching 1,000 jobs takes 25 s with all
    edges, and 0.2 s with these.

    `weights` is a table of each with each; 0: no edge. Kept for each job are

    - the edges that most exceed the averages of both their ends. The heaviest ones alone would lead
      to the same few partners, each of which can be used only once;
    - its edge in the best assignment of jobs to jobs, in which A may have B, B have C, and C have
      A. Most of that is pairs already, or can be cut into pairs, so that no job lacks a partner.
    """
    count = len(weights)
    average = weights.mean(axis=1)
    above = np.where(weights > 0, weights - average[:, None] - average, -np.inf)
    kept = min(KEPT, count)
    best = np.argpartition(-above, kept - 1, axis=1)[:, :kept]
    jobs, assigned = linear_sum_assignment(weights, maximize=True)
    rows = np.concatenate((np.repeat(np.arange(count), kept), jobs))
    columns = np.concatenate((best.ravel(), assigned))
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    low, high = np.divmod(np.unique(low * count + high), count)
    values = weights[low, high]
    there = (values > 0) & (low != high)
    return list(zip(low[there].tolist(), high[there].tolist(), values[there].tolist(), strict=True))


def matching(edges: Iterable[Edge]) -> list[tuple[int, int]]:
    """The maximum-weight matching."""
    whole = [(low, high, round(weight * GRAIN)) for low, high, weight in edges]
    graph = rustworkx.PyGraph(multigraph=False)
    graph.extend_from_weighted_edge_list(whole)
    pairs = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in pairs)


def take_apart(efficiencies: Sequence[float], gpus: Sequence[int], spare: float) -> set[int]:
    """Which pairs not to pack, so that otherwise idle GPUs are used: the least efficient ones, as
    long as there is room for another job with as many GPUs. `spare` is in GPUs, where faster ones
    count for more."""
    apart = set()
    for n in sorted(range(len(gpus)), key=lambda n: (efficiencies[n], n)):
        if gpus[n] <= spare:
            spare -= gpus[n]
            apart.add(n)
    return apart
