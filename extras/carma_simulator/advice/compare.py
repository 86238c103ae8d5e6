"""Whether a policy would have been better for a server's past jobs than the one in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from carma_simulator.experiment import JobOutcome, Outcome
from carma_simulator.metrics import crashes, has_finished, times

LEAST_JOBS = 100
LEAST_SAVED = 0.05  # of the mean time: less is within what the simulation can be wrong by
TOLERATED_S, TOLERATED = 60.0, 0.10  # that a user's mean wait may be longer


class Finding(NamedTuple):
    """The fields of `AdviceOut` that follow from the runs."""

    jobs: int
    saved: float | None
    longer: bool
    why_not: str


def compare(recorded: Outcome, present: Outcome, instead: Outcome) -> Finding:
    """How it was, and the same jobs simulated under the policy in force and under another. The
    better of the first two counts, as the simulation may be wrong."""
    runs = [recorded, present, instead]
    all_jobs = zip(*(run.jobs for run in runs), strict=True)
    jobs = [each for each in all_jobs if all(job.attempts and has_finished(job) for job in each)]
    if len(jobs) < LEAST_JOBS:
        few = f"{len(jobs)} past jobs can be compared, and it takes {LEAST_JOBS}"
        return Finding(len(jobs), None, False, few)
    was, is_now, would_be = zip(*jobs, strict=True)
    base_s = min(_mean_s(was), _mean_s(is_now))
    saved = 1 - _mean_s(would_be) / base_s
    waits = [_waits_s(each) for each in (was, is_now, would_be)]
    longer_s = {user: s - min(waits[0][user], waits[1][user]) for user, s in waits[2].items()}
    limits_s = {user: max(TOLERATED_S, TOLERATED * waits[1][user]) for user in longer_s}
    unhappy = sum(s > limits_s[user] for user, s in longer_s.items())
    return Finding(
        len(jobs),
        saved,
        any(s > 1.0 for s in longer_s.values()),
        _why_not(saved, unhappy, _more(crashes, present, instead), _more(_lost, present, instead)),
    )


def _why_not(saved: float, unhappy: int, crashed: int, lost: int) -> str:
    if lost > 0:
        return f"{lost} more past jobs would not have finished"
    if crashed > 0:
        return f"there would have been {crashed} more out-of-memory crashes"
    if saved < LEAST_SAVED:
        much = f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'}"
        return f"past jobs would have taken {much} time on average"
    if unhappy:
        return f"{unhappy} user{'s' if unhappy > 1 else ''} would have waited longer"
    return ""


def _more(count: Callable[[JobOutcome], int], present: Outcome, instead: Outcome) -> int:
    return sum(map(count, instead.jobs)) - sum(map(count, present.jobs))


def _lost(job: JobOutcome) -> int:
    return not has_finished(job)


def _mean_s(jobs: Iterable[JobOutcome]) -> float:
    return fmean(found.jct_s for job in jobs if (found := times(job)))


def _waits_s(jobs: Sequence[JobOutcome]) -> dict[str, float]:
    """Each user's mean."""
    by_user: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        if found := times(job):
            by_user[job.task.user].append(found.wait_s)
    return {user: fmean(waits) for user, waits in by_user.items()}
