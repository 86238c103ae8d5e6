"""Metrics of a simulated run, and lower bounds to compare them with.

Pure arithmetic on an `Outcome`; `carma_simulator.report` displays and exports the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles

from carma_simulator import past
from carma_simulator.experiment import JobOutcome, Outcome
from carma_simulator.past import Ran
from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.states import ENDED, JobState

MJ = 1e6  # joules


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one quantity over jobs. Percentiles interpolate linearly between the two
    nearest of the n sorted values, the k-th (from 0) being the 100·k/(n−1)-th percentile, as in
    numpy."""

    mean: float
    median: float
    p95: float
    p99: float
    p999: float  # the 99.9th percentile
    worst: float


@dataclass(frozen=True, slots=True)
class Times:
    """A launched job's times in seconds: jct_s = wait_s + lost_s + execution_s."""

    first_wait_s: float  # from submission to the first launch
    # in the queue, before every attempt (Castor, 9.2; Lucid's queuing delay), and suspended
    wait_s: float
    lost_s: float  # in wasted attempts: crashed and retried, or preempted before the first kernel
    execution_s: float  # the last attempt, launch included, and preempted ones that it continued
    jct_s: float  # job completion time: from submission to the end
    alone_s: float  # what execution_s would have been alone on the GPUs it ended on

    @property
    def slowdown(self) -> float | None:
        """The cost of sharing, preemption, checkpoints and moves while it ran; 1 is none.

        This applies to jobs that stayed on one kind of GPU: of one that was preempted and moved
        to another, part ran at a different speed. None if the job takes no time.
        """
        return self.execution_s / self.alone_s if self.alone_s > 0 else None

    @property
    def finish_ratio(self) -> float | None:
        """ρ: JCT over the time the job takes alone on its GPUs without waiting; 1 is ideal.

        After the finish-time fairness of Themis (Mahajan et al., NSDI 2020), which divides by
        the time on a 1/N share of the cluster; here a job's share is all that it asked for.
        """
        return self.jct_s / self.alone_s if self.alone_s > 0 else None


@dataclass(frozen=True, slots=True)
class Use:
    """Time-weighted means over GPUs, fractions 0–1."""

    memory: float  # used MiB of all MiB
    sm_active: float  # SMACT
    sm_occupancy: float  # SMOCC
    dram_active: float  # DRAMA


@dataclass(frozen=True, slots=True)
class Figures:
    """Times, and figures derived from them, are those of finished jobs; the others are counted.

    A job has finished when it reached the end that the trace has for it: success, or an error of
    its own. None: there is nothing to measure, or it is undefined because some job never ends.
    """

    jobs: int
    finished: int
    errors: int  # finished jobs that ended with an error of their own
    oom_lost: int  # given up after running out of GPU memory
    timed_out: int
    unfinished: int  # never ended, or ended in a way not in the trace
    makespan_s: float | None  # from the first submission to the last end
    jobs_per_hour: float | None  # finished, over the makespan
    jct: Spread | None
    wait: Spread | None
    first_wait: Spread | None
    execution: Spread | None
    lost: Spread | None
    queue_mean: float | None  # jobs in the queue, over the makespan
    queue_max: int
    gpus_busy: float | None  # share of GPU time with any job, up to the last end
    over_makespan: Use | None  # up to the last end, though some job may never end
    while_busy: Use | None  # over the time with any job, GPU by GPU
    sm_kept: float | None  # SM-busy seconds, over those that the same work takes alone
    energy_mj: float  # megajoules, of all GPUs
    oom_crashes: int  # attempts that ran out of GPU memory
    preemptions: int
    shared: int  # jobs that were on a GPU at the same time as another
    profiled: int | None  # jobs whose profile was known when they started
    deadlines: int  # jobs that have one
    deadlines_met: float | None  # share of those that finished in time
    slowdown: Spread | None
    finish_ratio: Spread | None
    jain: float | None  # Jain's index of the finish ratios
    events_per_s: float | None  # handled by the core, per second of wall-clock time
    decisions_per_s: float | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds for any schedule of the finished jobs on the GPUs that they ended on.

    They hold if each job stayed on one kind of GPU: a preempted job may have run on another kind
    at a different speed, and may beat them. With several kinds of GPUs another policy may find
    better GPUs, and have other bounds. None: no job finished, or for makespans, some job never
    ends.
    """

    jct_mean_s: float | None  # every job at once and alone
    makespan_s: float | None  # as above: the longest job, and the last arrival plus its duration
    unshared_makespan_s: float | None  # the work over all GPUs, none of them shared; see `bounds`


def has_finished(job: JobOutcome) -> bool:
    return job.state is JobState.SUCCEEDED or (job.state is JobState.FAILED and job.task.fails)


def never_ends(job: JobOutcome) -> bool:
    return job.state not in ENDED


def times(job: JobOutcome) -> Times | None:
    """None for a job that was never launched."""
    if not job.attempts:
        return None
    submitted_at, last = job.task.submit_s, job.attempts[-1]
    lost_s = execution_s = 0.0
    for attempt in job.attempts:
        went_on = attempt.cause is Cause.PREEMPTED and attempt.ready_at is not None
        if attempt is last or went_on:
            execution_s += attempt.ended_at - attempt.launched_at - attempt.suspended_s
        else:
            lost_s += attempt.ended_at - attempt.launched_at
    jct_s = last.ended_at - submitted_at
    return Times(
        first_wait_s=job.attempts[0].launched_at - submitted_at,
        wait_s=jct_s - lost_s - execution_s,
        lost_s=lost_s,
        execution_s=execution_s,
        jct_s=jct_s,
        alone_s=job.alone_s,
    )


def crashes(job: JobOutcome) -> int:
    """Its attempts that ran out of GPU memory."""
    return _count_ends(job, Cause.GPU_OOM)


def preemptions(job: JobOutcome) -> int:
    return _count_ends(job, Cause.PREEMPTED)


def in_time(job: JobOutcome) -> bool | None:
    """None for a job without a deadline."""
    if job.task.deadline_s is None:
        return None
    return has_finished(job) and job.ended_at - job.task.submit_s <= job.task.deadline_s


def figures(outcome: Outcome) -> Figures:
    jobs, last_end_s, wall_s = outcome.jobs, outcome.makespan_s, outcome.wall_s
    endless = any(map(never_ends, jobs))
    done = [job for job in jobs if has_finished(job)]
    measured = [found for job in done if (found := times(job)) is not None]
    ratios = [r for t in measured if (r := t.finish_ratio) is not None]
    promises = [kept for job in jobs if (kept := in_time(job)) is not None]
    oom_lost = sum(job.state is JobState.OUT_OF_MEMORY for job in jobs)
    timed_out = sum(job.state is JobState.TIMED_OUT for job in jobs)
    busy_s = sum(gpu.busy_s for gpu in outcome.gpus)
    timeline = outcome.timeline
    return Figures(
        jobs=len(jobs),
        finished=len(done),
        errors=sum(job.state is JobState.FAILED for job in done),
        oom_lost=oom_lost,
        timed_out=timed_out,
        unfinished=len(jobs) - len(done) - oom_lost - timed_out,
        makespan_s=None if endless else last_end_s,
        jobs_per_hour=None if endless else _per(3600 * len(done), last_end_s),
        jct=spread(t.jct_s for t in measured),
        wait=spread(t.wait_s for t in measured),
        first_wait=spread(t.first_wait_s for t in measured),
        execution=spread(t.execution_s for t in measured),
        lost=spread(t.lost_s for t in measured),
        queue_mean=None if endless else _mean_over_time(timeline.at, timeline.queued, last_end_s),
        queue_max=int(max(timeline.queued, default=0)),
        gpus_busy=_per(busy_s, last_end_s * len(outcome.gpus)),
        over_makespan=_use(outcome, [last_end_s] * len(outcome.gpus)),
        while_busy=_use(outcome, [gpu.busy_s for gpu in outcome.gpus]),
        sm_kept=_per(
            sum(gpu.sm_active_s for gpu in outcome.gpus), sum(gpu.sm_work_s for gpu in outcome.gpus)
        ),
        energy_mj=sum(gpu.energy_j for gpu in outcome.gpus) / MJ,
        oom_crashes=sum(map(crashes, jobs)),
        preemptions=sum(map(preemptions, jobs)),
        shared=len(past.sharers(past.stretches([Ran(job.attempts, None) for job in jobs]))),
        profiled=outcome.profiled,
        deadlines=len(promises),
        deadlines_met=_per(sum(promises), len(promises)),
        slowdown=spread(s for t in measured if (s := t.slowdown) is not None),
        finish_ratio=spread(ratios),
        jain=jain(ratios),
        events_per_s=_per(outcome.events, wall_s),
        decisions_per_s=_per(outcome.decisions, wall_s),
    )


def bounds(outcome: Outcome) -> Bounds:
    """Lower bounds for the `figures` of the same run.

    `unshared_makespan_s` is the maximum over r of "r, plus all work submitted from r on, spread
    evenly over all GPUs" (r = 0: work over capacity). It only bounds exclusive policies: shared
    GPUs can do more than one job's work at a time, and then a run may beat it.
    """
    done = [job for job in outcome.jobs if job.attempts and has_finished(job)]
    work_s = unshared_s = 0.0  # per GPU of the cluster
    for job in sorted(done, key=lambda job: job.task.submit_s, reverse=True):
        work_s += job.alone_s * len(job.attempts[-1].gpus) / len(outcome.gpus)
        unshared_s = max(unshared_s, job.task.submit_s + work_s)
    if not done:
        return Bounds(None, None, None)
    jct_mean_s = fmean(job.alone_s for job in done)
    if any(map(never_ends, outcome.jobs)):
        return Bounds(jct_mean_s, None, None)
    return Bounds(jct_mean_s, max(job.task.submit_s + job.alone_s for job in done), unshared_s)


def spread(values: Iterable[float]) -> Spread | None:
    """None if there are no values."""
    found = list(values)
    if not found:
        return None
    # `quantiles` needs two values; a single one is every percentile
    cuts = quantiles(found, n=1000, method="inclusive") if len(found) > 1 else found * 999
    return Spread(fmean(found), median(found), cuts[949], cuts[989], cuts[998], max(found))


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index, (Σx)² / (n·Σx²): 1 when all are equal, 1/n when one has it all.

    Jain, Chiu and Hawe, DEC-TR-301, 1984. None if there are no values.
    """
    return _per(sum(values) ** 2, len(values) * sum(value * value for value in values))


def _count_ends(job: JobOutcome, cause: Cause) -> int:
    return sum(attempt.cause is cause for attempt in job.attempts)


def _use(outcome: Outcome, seconds: Sequence[float]) -> Use | None:
    """Means over GPUs, each weighted with its `seconds`."""
    whole_s = sum(seconds)
    if whole_s <= 0:
        return None
    size_mib = {
        (node.name, kind.name): kind.memory_mib
        for node in outcome.cluster.nodes
        for kind in node.units
    }
    gpus = outcome.gpus
    mib_s = sum(size_mib[gpu.node, gpu.kind] * own for gpu, own in zip(gpus, seconds, strict=True))
    return Use(
        memory=sum(gpu.memory_mib_s for gpu in gpus) / mib_s,
        sm_active=sum(gpu.sm_active_s for gpu in gpus) / whole_s,
        sm_occupancy=sum(gpu.sm_occupancy_s for gpu in gpus) / whole_s,
        dram_active=sum(gpu.dram_active_s for gpu in gpus) / whole_s,
    )


def _mean_over_time(at: Sequence[float], values: Sequence[float], end_s: float) -> float | None:
    """Each value holds from its `at` to the next, the last one to `end_s`."""
    stretches = zip(pairwise([*at, end_s]), values, strict=True)
    whole = sum(v * max(0.0, min(end, end_s) - begin) for (begin, end), v in stretches)
    return _per(whole, end_s)


def _per(amount: float, base: float) -> float | None:
    return amount / base if base > 0 else None
