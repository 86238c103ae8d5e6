"""How long a job will still run, and what is known of that: the one answer for promises, forecasts
and words."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from carmad.core.jobs.job import Job

OVERRUN = 0.25  # of its run time is assumed to be left of a job that has outlived what was said
MINUTE_S = 60.0  # a job of which nothing is said takes so long, and as long again as it has run
LEAST_S = 1.0  # that is left of any job


class Left(NamedTuple):
    """How long a job will still run, alone. Its past run time counts in full, as its progress
    beside others is not known."""

    seconds: float  # most likely
    known_s: float  # by its time limit, its owner's word or earlier runs of it; infinite: a guess
    is_said: bool = True  # False: nothing is known of such jobs; `seconds` is not for people

    @property
    def is_known(self) -> bool:
        return self.known_s < inf

    @property
    def end_s(self) -> float:
        return self.known_s if self.is_known else self.seconds


def exactly(seconds: float) -> Left:
    return Left(seconds, seconds)


def predicted_s(job: Job, now: float) -> float:
    """How long a job of which something is said will still run, whatever its time limit."""
    said_s, done_s = job.expected_s or 0.0, job.attained_s(now)
    return LEAST_S if job.leaves else max(LEAST_S, said_s - done_s, OVERRUN * done_s)


def left(job: Job, now: float) -> Left:
    """What other jobs took (`Prediction.is_guess`) is a guess, and so is the end of a job that has
    outlived what was said of it."""
    if job.leaves:
        return exactly(LEAST_S)
    done_s, limit_s, said_s = job.attained_s(now), job.spec.time_limit_s, job.expected_s
    by_limit_s = inf if limit_s is None else max(0.0, limit_s - done_s)
    if said_s is None:
        guess_s = max(done_s, MINUTE_S - done_s)
        return Left(guess_s, inf, is_said=False) if limit_s is None else exactly(by_limit_s)
    seconds = min(by_limit_s, predicted_s(job, now))
    if job.own_s is None:
        return Left(seconds, by_limit_s)
    longest_s = max(said_s, (job.prediction and job.prediction.at_most_s) or 0.0)
    if done_s < said_s or by_limit_s <= seconds:
        return exactly(seconds)
    return Left(seconds, min(by_limit_s, longest_s - done_s) if done_s < longest_s else inf)
