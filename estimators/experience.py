"""What finished jobs teach the trace estimator: the context's size, and how far it falls short.

A user's own runs teach that user. What others' runs say is their word, for whoever submits a job
decides what it holds and what is traced of it: a newcomer gets the median of what the users say, a
vote each, and only if they are enough. So one of them, whatever he runs, moves it no further than
from one honest user's value to another's.

Some jobs end before they have grown to their full size. Nothing in a measured peak tells these
from the rest, so only robust statistics are used, and a run whose peak stayed below the bytes
that the trace had seen live at once (its `low`, less the context) is not counted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from carmad.plugin import Run, Server

ENOUGH_FOR_CONTEXT = 3  # runs: the median of three survives one that is far off
ENOUGH_FOR_MARGIN = 10
ENOUGH_USERS = 3  # likewise
COVERED = 0.95
SMALL_MIB = 1024  # below this, errors do not shrink with the job
# What CUDA and its libraries can take of a process: some 300 MiB with kernels loaded as they are
# used (CUDA 11.7 and newer), more than 1 GiB before; the stacks behind `benchmarks.memory.mlp` and
# `benchmarks.memory.timm` took 1,429 and 1,793 MiB.
CONTEXT_MIB = (200, 3072)


@dataclass(frozen=True, slots=True)
class Judged:
    """One estimate of a trace, and the peak that followed, in MiB."""

    body_mib: int  # the estimate without the context
    peak_mib: int


@dataclass(frozen=True, slots=True)
class Past:
    """What ended well on one stack: the user's own runs, and those of each other user."""

    own: Sequence[Judged]
    others: Sequence[Sequence[Judged]] = ()

    def taught(
        self, enough: int, lesson: Callable[[Sequence[Judged]], float]
    ) -> tuple[float, str] | None:
        """The lesson of the user's own runs if they are enough, else the median of what each other
        user's teach; and whose they were, in words. None: there are too few of both."""
        if len(self.own) >= enough:
            return lesson(self.own), f"{len(self.own)} runs"
        votes = [lesson(runs) for runs in self.others if len(runs) >= enough]
        if len(votes) < ENOUGH_USERS:
            return None
        return median(votes), f"{len(votes)} users"


def past(server: Server, uid: int, source: str, stack: str) -> Past:
    others = (server.runs(other) for other in server.users() if other != uid)
    return Past(
        judged(server.runs(uid), source, stack),
        [judged(runs, source, stack) for runs in others],
    )


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


def context_mib(past: Past) -> tuple[int, str] | None:
    """What processes held beyond what was traced: the median, as far as a context can be so small
    or so large; and whose runs say so. None: too few do."""
    taught = past.taught(ENOUGH_FOR_CONTEXT, _context_mib)
    return (round(taught[0]), taught[1]) if taught else None


def _context_mib(runs: Sequence[Judged]) -> float:
    least, most = CONTEXT_MIB
    return min(max(median(run.peak_mib - run.body_mib for run in runs), least), most)


def shortfall_mib(past: Past, context_mib: int, body_mib: int) -> int:
    """What to add to an estimate so that it covers 95 of 100 runs like the past ones.

    A shortfall counts in proportion to its job, or to 1 GiB if that is more. Of a user's n
    shortfalls the ⌈0.95·(n+1)⌉-th smallest is taken, the largest if there are fewer: a job drawn
    like these stays under it with 95 %, whatever their law. 0 where fewer than ten runs teach.
    """

    def share(runs: Sequence[Judged]) -> float:
        shares = sorted(
            (run.peak_mib - context_mib - run.body_mib) / max(SMALL_MIB, run.body_mib)
            for run in runs
        )
        return shares[min(len(shares), ceil(COVERED * (len(shares) + 1))) - 1]

    taught = past.taught(ENOUGH_FOR_MARGIN, share)
    return max(0, ceil(taught[0] * max(SMALL_MIB, body_mib))) if taught else 0
