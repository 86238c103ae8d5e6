"""What finished jobs teach the trace estimator: the context's size, and how far it falls short.

Some jobs end before they have grown to their full size. Nothing in a measured peak tells these
from the rest, so only robust statistics are used, and a run whose peak stayed below the bytes
that the trace had seen live at once (its `low`, less the context) is not counted at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from carmad.plugin import Run

ENOUGH_FOR_CONTEXT = 3  # the median of three survives one that is far off
ENOUGH_FOR_MARGIN = 10
COVERED = 0.95
SMALL_MIB = 1024  # below this, errors do not shrink with the job


@dataclass(frozen=True, slots=True)
class Judged:
    """One estimate of a trace, and the peak that followed, in MiB."""

    body_mib: int  # the estimate without the context
    peak_mib: int


def judged(runs: Iterable[Run], source: str, stack: str) -> list[Judged]:
    """The runs on which this estimator had said something, on the same GPU, driver and torch."""
    found = []
    for run in runs:
        if run.estimate is None:
            continue
        for estimate in (run.estimate, *run.estimate.others):
            context_mib = dict(estimate.parts).get("context")
            if estimate.source != source or estimate.stack != stack or context_mib is None:
                continue
            if run.peak_mib >= (estimate.low or 0) - context_mib:
                found.append(Judged(estimate.mib - context_mib, run.peak_mib))
    return found


def context_mib(past: Sequence[Judged]) -> int | None:
    """What processes held beyond what was traced: the median. None with fewer than three runs."""
    if len(past) < ENOUGH_FOR_CONTEXT:
        return None
    return max(0, round(median(run.peak_mib - run.body_mib for run in past)))


def shortfall_mib(past: Sequence[Judged], context_mib: int, body_mib: int) -> int:
    """What to add to an estimate so that it covers 95 of 100 runs like the past ones.

    A shortfall counts in proportion to its job, or to 1 GiB if that is more. Of the n shortfalls
    the ⌈0.95·(n+1)⌉-th smallest is taken, the largest if there are fewer: a job drawn like these
    stays under it with 95 %, whatever their law. 0 with fewer than ten runs.
    """
    if len(past) < ENOUGH_FOR_MARGIN:
        return 0
    shares = sorted(
        (run.peak_mib - context_mib - run.body_mib) / max(SMALL_MIB, run.body_mib) for run in past
    )
    rank = min(len(shares), ceil(COVERED * (len(shares) + 1)))
    return max(0, ceil(shares[rank - 1] * max(SMALL_MIB, body_mib)))
