"""How much jobs slow each other on shared GPUs: measured, and what sharing gave for it.

The interference ratio xi of a pair (Castor paper, 3.1) is measured from step times that jobs
report. A job's receipt says what sharing cost it and what it saved; docs/concepts/sharing.md
explains the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import JobSummary, Seen, Stay, first_started_at, label
from carmad.core.jobs.attempt import Cause, JobId, Mode
from carmad.core.jobs.findings import Company, Loaded, Profile
from carmad.core.jobs.history import ENOUGH_RUNS
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState

KEPT = 4  # ratios of one job, the latest: each adds a KiB to its row, which is written often
SAME = 0.01  # a relative change of a ratio that is not worth saving
COVERED = 0.5  # of the shared time that must be known, to speak for all of it
STEADY = 1.25  # the longest run alone over the shortest: beyond it, they tell little
HOUR_S = 3600.0

Source = Literal["steps", "runs", "activity", "simulation"]


def load(profile: Profile | None, memory_mib: int) -> Loaded | None:
    """What a job with this profile does to its GPUs; None without one."""
    if profile is None or not profile.seconds or not profile.peak_mib:
        return None
    return Loaded(profile.indicators, profile.peak_mib / memory_mib)


def beside(own: Loaded, other: Loaded, mps: bool) -> dict[str, float]:
    """The features of a prediction of the slowdown of `own`: the mean and the variance of every
    indicator of both profiles, memory as a share of the GPU's, and whether they share by MPS.
    Values are 0 to 1: `own.sm_active.mean`, `other.gpu_utilization.variance`, `own.memory.share`.
    """
    return dict((*_features("own", own), *_features("other", other), ("mode.mps", float(mps))))


def why_no_ratio(job: Job, neighbour: Job, gpu: Gpu) -> str:
    """Why a step time of `job` beside `neighbour` does not show how much that slows it; "" if it
    does."""
    if neighbour.state is not JobState.RUNNING:
        return f"job {label(neighbour)}, beside it, has yet to begin, or is ending"
    if job.accumulation > 1 or neighbour.accumulation > 1:  # profiles are of whole batches
        return f"its batches, or those of job {label(neighbour)}, are split"
    for each in (job, neighbour):
        if load(each.profile, gpu.memory_mib) is None:
            return f"job {label(each)} has no profile"
    if not _alone_s(job, gpu):
        return f"no step time of it alone on {gpu.name} is known, to compare with"
    return ""


def with_company(job: Job, seconds: float, neighbour: Job, gpu: Gpu) -> Job:
    """The job with the ratio of a step time beside `neighbour` to that reported alone on the same
    kind of GPU, in place of an earlier ratio beside the same one. The same object if there is no
    ratio (`why_no_ratio`), or if it differs by less than `SAME`."""
    own = load(job.profile, gpu.memory_mib)
    other = load(neighbour.profile, gpu.memory_mib)
    if why_no_ratio(job, neighbour, gpu) or own is None or other is None:
        return job
    mps = job.mode is neighbour.mode is Mode.MPS
    new = Company(neighbour.id, seconds / _alone_s(job, gpu), own, other, mps)
    before = next((each for each in job.company if each.neighbour == new.neighbour), None)
    if before and abs(before.ratio - new.ratio) < SAME * before.ratio:
        return job
    others = [each for each in job.company if each is not before]
    return replace(job, company=(*others, new)[-KEPT:])


def _alone_s(job: Job, gpu: Gpu) -> float:
    """The time of a whole step alone on this kind of GPU; 0 if it is not known."""
    alone = (1, gpu.name)
    return next((each.seconds for each in job.steps if (each.parts, each.gpu) == alone), 0.0)


def _features(whose: str, its: Loaded) -> Iterator[tuple[str, float]]:
    for indicator in its.indicators:
        yield f"{whose}.{indicator.name}.mean", indicator.mean
        yield f"{whose}.{indicator.name}.variance", indicator.variance
    yield f"{whose}.memory.share", its.memory_share


@dataclass(frozen=True, slots=True)
class Slowdown:
    """`ratio`: the time that its work took beside others, over that alone; at least 1, as less is
    noise. It is between `low` and `high` as far as the source can tell."""

    ratio: float
    low: float
    high: float
    source: Source
    known_from: int  # neighbours measured or profiled, or runs alone


@dataclass(frozen=True, slots=True)
class Basis:
    """What slow-downs are found from, besides the job itself."""

    since: float  # from when on all neighbours are known
    # How long runs of the same job took that never shared.
    runs_s: Callable[[Seen], Sequence[float]]
    sm_active: Mapping[JobId, float]  # alone, of the jobs of which it is known


def slowdown(job: Seen, stays: Sequence[Stay], basis: Basis) -> Slowdown | None:
    """How much sharing slowed a job that shared; None: unknown."""
    if isinstance(job, JobSummary) and job.alone_s is not None:
        return _against(stays, [job.alone_s], "simulation")
    return _by_steps(job, stays) or _by_runs(job, stays, basis) or _by_activity(job, stays, basis)


def work_s(stays: Sequence[Stay]) -> float:
    """How long the work of a job that has ended took, in the attempts that were not lost."""
    return sum(each.run_s for each in _effective(stays))


def _effective(stays: Sequence[Stay]) -> Iterable[Stay]:
    """The attempts whose work was not lost: the last, and those that were preempted."""
    for each in stays:
        exit = each.attempt.exit
        if each is stays[-1] or (exit is not None and exit.cause is Cause.PREEMPTED):
            yield each


def _by_runs(job: Seen, stays: Sequence[Stay], basis: Basis) -> Slowdown | None:
    began_at = first_started_at(job)
    if job.state is not JobState.SUCCEEDED or began_at is None or began_at < basis.since:
        return None
    runs = basis.runs_s(job)
    if len(runs) < ENOUGH_RUNS or max(runs) > STEADY * min(runs):
        return None
    return _against(stays, runs, "runs")


def _against(stays: Sequence[Stay], runs: Sequence[float], source: Source) -> Slowdown | None:
    """Against how long it takes alone. None: that is less than what it ran for alone."""
    whole_s = work_s(stays)
    shared_s = sum(each.shared_s for each in _effective(stays))
    left = [alone_s - (whole_s - shared_s) for alone_s in (median(runs), max(runs), min(runs))]
    if min(left) <= 0 or shared_s <= 0:
        return None
    ratio, low, high = (max(1.0, shared_s / each) for each in left)
    return Slowdown(ratio, low, high, source, len(runs))


def _by_steps(job: Seen, stays: Sequence[Stay]) -> Slowdown | None:
    ratios = {JobId(each.neighbour): max(1.0, each.ratio) for each in job.company}
    beside_s = _beside_s(stays, ratios)
    if not beside_s:
        return None
    # The work done beside a neighbour is the time there over its ratio.
    work_s = sum(seconds / ratios[id] for id, seconds in beside_s.items())
    found = [ratios[id] for id in beside_s]
    return Slowdown(sum(beside_s.values()) / work_s, min(found), max(found), "steps", len(found))


def _by_activity(job: Seen, stays: Sequence[Stay], basis: Basis) -> Slowdown | None:
    """Together, jobs do as much work per hour as they keep SMs busy: against what they keep busy
    alone, each by itself. Both of a pair are taken to be slowed alike."""
    alone, usage, beside_s = basis.sm_active, job.usage, _beside_s(stays, basis.sm_active)
    if job.id not in alone or not beside_s or usage.paired_sm_seconds <= 0:
        return None
    others = sum(alone[id] * seconds for id, seconds in beside_s.items()) / sum(beside_s.values())
    together = usage.paired_sm_seconds / usage.paired_seconds
    ratio = max(1.0, (alone[job.id] + others) / together)
    return Slowdown(ratio, ratio, ratio, "activity", len(beside_s))


def _beside_s(stays: Sequence[Stay], known: Container[JobId]) -> dict[JobId, float]:
    """How long the job was beside each neighbour that is known, and nobody else; none if that says
    too little of all of the shared time."""
    found: dict[JobId, float] = {}
    for each in stays:
        for id, seconds in (each.beside or {}).items():
            if id in known:
                found[id] = found.get(id, 0.0) + seconds
    covered_s, shared_s = sum(found.values()), sum(each.shared_s for each in stays)
    return found if covered_s > 0 and covered_s >= COVERED * shared_s else {}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What sharing cost and gave one job in a period, in GPU-hours."""

    held: float  # its GPUs, all of the time
    shared: float  # that part of it in which another job was on any of its GPUs
    share: float  # held, where a GPU with n jobs counts an n-th for each
    neighbours: frozenset[JobId]  # over its whole run
    slowdown: Slowdown | None  # None: it did not share, or nothing is known
    alone: float | None  # what its work would have held alone; None: not known

    @property
    def saving(self) -> float | None:
        """GPU-hours that others could use because it shared; negative: it cost more than it gave.
        None: not known."""
        return None if self.alone is None else self.alone - self.share

    @property
    def most_saving(self) -> float:
        """As if sharing had not slowed it."""
        return self.held - self.share


def receipt(job: Seen, stays: Sequence[Stay], basis: Basis) -> Receipt:
    """`stays`: the job's, as `sharing.overlaps` found them."""
    useful = [each for each in stays if not _is_in_vain(each)]
    shared = any(each.shared_s for each in useful)
    found = slowdown(job, useful, basis) if shared else None
    alone: float | None = None
    if found or not shared:
        ratio = found.ratio if found else 1.0
        alone = sum(map(_hours, useful)) - sum(map(_hours_together, useful)) * (1 - 1 / ratio)
    return Receipt(
        held=sum(map(_hours, stays)),
        shared=sum(map(_hours_together, stays)),
        share=sum(each.share for each in stays) / HOUR_S,
        neighbours=frozenset(id for each in stays for id in each.others or ()),
        slowdown=found,
        alone=alone,
    )


def _hours(stay: Stay) -> float:
    return len(stay.attempt.gpus) * stay.held_s / HOUR_S


def _hours_together(stay: Stay) -> float:
    return len(stay.attempt.gpus) * stay.held_shared_s / HOUR_S


def _is_in_vain(stay: Stay) -> bool:
    """Whether sharing may have ended it: alone, it would have had that memory."""
    exit = stay.attempt.exit
    return exit is not None and exit.cause is Cause.GPU_OOM and stay.shared_s > 0
