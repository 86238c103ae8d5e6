"""How long a job will still run, and what is known of that: the one answer for promises, forecasts
and words. From this follows when jobs would start and end, for their owners; policies do not use
that.

List scheduling: waiting jobs take, in queue order, the GPUs that are free first, and running jobs
release theirs when they are expected to end; a shared GPU takes the next job once it has settled. A
policy may do better, or worse for this job by another order. GPUs that are reserved now are free
when that is over. Quotas, array limits, the host's CPUs and memory, later reservations and the
small memory of MIG instances are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from typing import NamedTuple

from carmad.core.gpus.gpuview import GpuView
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.tasks import singly

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


FORESEEN = 1000  # jobs of the line
NOBODY = JobId(0)
# With these, nine of ten forecasts hold, also if predictions are wrong: `lab.simulator.starts`.
SHORTER, SLACK = 0.5, 1.4  # so much of its predicted duration does a job take
LAUNCH_S = 20.0  # from one job's end, or the end of settling, to the next one's first kernel


@dataclass(frozen=True, slots=True)
class Outlook:
    """Infinite means unknown."""

    starts_at: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Start:
    """When a waiting job would start: infinite if unknown. `after`: whose end it waits for last;
    `NOBODY`: no job's, or too few GPUs take jobs."""

    at: float
    after: JobId


@dataclass(frozen=True, slots=True)
class Forecast:
    """`earliest`: if a GPU takes the next job as soon as it has settled; `likely`: if none is
    shared, and all take as long as predicted, or their limits; `latest`: if, besides, jobs that
    share now go on to slow each other down, and all take `SLACK` times longer."""

    earliest: float
    likely: Start
    latest: Start


def outlook(
    job: Job, line: Iterable[Job], gpus: Iterable[GpuView], now: float, running: Iterable[Job] = ()
) -> Outlook:
    """`line` has the waiting jobs in order; a job that is not in it comes last. `running` adds the
    jobs that run without GPUs, as others may wait for their end."""
    if job.holds_gpus:
        return Outlook(job.started_at or now, now + _own_s(job, now))
    waiting = tuple(singly(line))
    if all(each.id != job.id for each in waiting):
        waiting = (*waiting, job)
    starts_at = _starts(waiting, gpus, now, running, likely_s, until=job.id)[job.id].at
    return Outlook(starts_at, starts_at + _own_s(job, now))


def forecast(
    line: Iterable[Job],
    gpus: Iterable[GpuView],
    now: float,
    running: Iterable[Job] = (),
    shares: bool = True,
    window_s: float = 0.0,
) -> dict[JobId, Forecast]:
    """Of the first `FORESEEN` waiting jobs. `running`: see `outlook`. `shares`: whether the policy
    lets jobs share a GPU, which it does `window_s` after the last one's first kernel."""
    waiting, there, run = tuple(islice(singly(line), FORESEEN)), tuple(gpus), tuple(running)
    settled_s = _settling_s(there, window_s) if shares else {}
    together: dict[JobId, int] = {}
    for gpu in there:
        for job in gpu.residents:
            together[job.id] = max(together.get(job.id, 1), len(gpu.residents))

    def shortest_s(job: Job, now: float) -> float:
        its_s = _within_s(job, now, SHORTER)
        if not shares or job.exclusive or not job.spec.gpus:
            return its_s
        return min(its_s, settled_s.get(job.id, window_s))

    def middle_s(job: Job, now: float) -> float:
        slower = together.get(job.id, 1)
        its_s = _within_s(job, now, slower) if slower > 1 else inf
        return likely_s(job, now) if its_s == inf else its_s

    def longest_s(job: Job, now: float) -> float:
        return _within_s(job, now, SLACK * together.get(job.id, 1)) + LAUNCH_S

    soonest = _starts(waiting, there, now, run, shortest_s)
    likely = _starts(waiting, there, now, run, middle_s)
    latest = _starts(waiting, there, now, run, longest_s)
    return {
        id: Forecast(
            min(one.at, soonest[id].at), one, max(one, latest[id], key=lambda start: start.at)
        )
        for id, one in likely.items()
    }


def _settling_s(gpus: Iterable[GpuView], window_s: float) -> dict[JobId, float]:
    """For how long each resident still keeps others from its GPUs, at least."""
    found: dict[JobId, float] = {}
    for gpu in gpus:
        its_s = 0.0
        if why := gpu.settling:
            its_s = max(0.0, why.need - why.have) if why.code == "settling" else window_s
        found |= {job.id: max(its_s, found.get(job.id, 0.0)) for job in gpu.residents}
    return found


def _within_s(job: Job, now: float, factor: float) -> float:
    """How long it will still run if it takes `factor` times as long as predicted in all, or as nine
    of ten such jobs take where that is longer; its time limit bounds it."""
    expected_s = job.expected_s
    if factor > 1 and job.prediction and job.prediction.at_most_s:
        expected_s = max(expected_s or 0.0, job.prediction.at_most_s / SLACK)
    done_s, limit_s = job.attained_s(now), job.spec.time_limit_s
    left_s = inf if expected_s is None else expected_s * factor - done_s
    if left_s <= 0:  # it takes longer still
        left_s = inf if factor > 1 else 0.0
    return left_s if limit_s is None else min(left_s, max(0.0, limit_s - done_s))


def _starts(
    waiting: tuple[Job, ...],
    gpus: Iterable[GpuView],
    now: float,
    running: Iterable[Job],
    left_s: Callable[[Job, float], float],
    until: JobId | None = None,
) -> dict[JobId, Start]:
    """Of these jobs in order, up to and with `until`."""
    there = tuple(gpus)
    ends_at = dict.fromkeys((each.id for each in waiting), inf)
    residents = (each for gpu in there for each in gpu.residents)
    ends_at |= {each.id: now + left_s(each, now) for each in chain(running, residents)}
    usable = (gpu for gpu in there if not (gpu.drained or (gpu.sample and gpu.sample.fault)))
    free = sorted(_free(gpu, ends_at, now) for gpu in usable)
    found: dict[JobId, Start] = {}
    for job in waiting:
        needed = job.spec.gpus
        ready_at, last = _ready(job, ends_at)
        at, after = _nth(free, needed, now)
        starts_at = max(ready_at, at)
        found[job.id] = Start(starts_at, after if at >= ready_at else last)
        if job.id == until:
            break
        ends_at[job.id] = starts_at + left_s(job, now)
        if ready_at <= at and ready_at < inf:  # otherwise the jobs behind it go first
            its_end = starts_at + left_s(job, now)
            free[:needed] = [(its_end, after if at == inf else job.id)] * len(free[:needed])
            free.sort()
    return found


def _nth(free: Sequence[tuple[float, JobId]], needed: int, now: float) -> tuple[float, JobId]:
    """When so many GPUs are free, and after whose end."""
    if not needed:
        return now, NOBODY
    return free[needed - 1] if needed <= len(free) else (inf, NOBODY)


def _free(gpu: GpuView, ends_at: Mapping[JobId, float], now: float) -> tuple[float, JobId]:
    """When it is free, and whose end that is."""
    over_at = max((slot.ends_at for slot in gpu.reserved if not slot.in_s), default=now)
    return max([(over_at, NOBODY), *((ends_at[each.id], each.id) for each in gpu.residents)])


def _ready(job: Job, ends_at: Mapping[JobId, float]) -> tuple[float, JobId]:
    """When it waits for nothing but GPUs, and whose end that is. A dependency that neither waits
    nor runs has ended; the end of one that is behind it in line is unknown."""
    if job.held:
        return inf, NOBODY
    waits_for = ((ends_at.get(after.job, 0.0), after.job) for after in job.spec.after)
    return max((job.spec.begin_at or 0.0, NOBODY), *waits_for, (0.0, NOBODY))


def _own_s(job: Job, now: float) -> float:
    """How long it will still run, by what is said of it alone."""
    return inf if job.own_s is None else left(job, now).seconds


def likely_s(job: Job, now: float) -> float:
    """How long it will still run, most likely."""
    its = left(job, now)
    return its.seconds if its.is_said else inf
