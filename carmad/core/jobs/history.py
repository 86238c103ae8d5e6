"""Past jobs and submission counts, from which policies and predictors learn.

Everything here is bounded: the latest jobs, the latest days.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Profile, StageTimes, StepTime
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import JobState

RUNS = 4096  # ended runs kept, the latest
PER_KIND = 64  # durations kept per group, per user, and per user and number of GPUs
VOTERS = 64  # users kept per number of GPUs
ENOUGH_VOTERS = 3  # the median of three survives one outlier
ENOUGH_RUNS = 3  # to tell how long nine of ten take
KINDS = 4096  # groups, users or numbers of GPUs kept
BIN_S = 600.0
BINS = 8 * 144  # eight days, so that the same day last week is covered


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Submission(NamedTuple):
    at: float  # Unix s
    gpus: int  # of all these jobs
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Past:
    """A job that ran and ended."""

    job: JobId
    attempt: int
    group: str
    user: str
    name: str
    gpus: int
    submitted_at: float
    duration_s: float  # how long it held its GPUs, in attempts that were not lost
    state: JobState
    profile: Profile | None
    steps: tuple[StepTime, ...]
    stage_times: tuple[StageTimes, ...] = ()
    uid: int = -1

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.user)


def past(job: Job) -> Past | None:
    """The job as a past run; None if it held no GPUs when it ended."""
    if not job.ended or not job.gpus or job.started_at is None or job.ended_at is None:
        return None
    return Past(
        job.id,
        job.attempt,
        job.group,
        job.spec.user,
        job.spec.name,
        job.spec.gpus,
        job.submitted_at,
        job.served_s + max(0.0, job.ended_at - job.started_at),
        job.state,
        job.profile,
        job.steps,
        job.stage_times,
        job.spec.uid,
    )


class Durations:
    """The latest durations of each kind, in seconds."""

    def __init__(self, most: int = KINDS) -> None:
        self._most = most
        self._kinds: OrderedDict[Hashable, deque[float]] = OrderedDict()

    @property
    def kinds(self) -> Collection[Hashable]:
        return self._kinds.keys()

    def add(self, kind: Hashable, seconds: float) -> None:
        durations = self._kinds.get(kind, deque(maxlen=PER_KIND))
        durations.append(seconds)
        _keep(self._kinds, kind, durations, self._most)

    def of(self, kind: Hashable) -> Sequence[float]:
        """The durations of this kind, the newest last."""
        return tuple(self._kinds.get(kind, ()))

    def mean(self, kind: Hashable) -> float | None:
        found = self._kinds.get(kind)
        return fmean(found) if found else None

    def median(self, kind: Hashable) -> float | None:
        found = self._kinds.get(kind)
        return median(found) if found else None

    def at_most(self, kind: Hashable) -> float | None:
        """What nine of ten did not exceed; None if too few are known."""
        found = sorted(self._kinds.get(kind, ()))
        return found[ceil(0.9 * len(found)) - 1] if len(found) >= ENOUGH_RUNS else None


class Votes:
    """The latest durations of each kind, in seconds, by user, for predictions from other users'
    jobs. Each user has one vote, however many jobs, so that nobody can skew the others' results."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, Durations] = OrderedDict()

    def add(self, kind: Hashable, user: Owner, seconds: float) -> None:
        durations = self._kinds.get(kind, Durations(VOTERS))
        durations.add(user, seconds)
        _keep(self._kinds, kind, durations)

    def median(self, kind: Hashable) -> float | None:
        """The median of the users' means; None if fewer than `ENOUGH_VOTERS` are known."""
        durations = self._kinds.get(kind, Durations())
        means = [mean for user in durations.kinds if (mean := durations.mean(user)) is not None]
        return median(means) if len(means) >= ENOUGH_VOTERS else None


class History:
    """Grows in place; a policy only reads it."""

    def __init__(self, runs: Iterable[Past] = (), submissions: Iterable[Submission] = ()) -> None:
        self.by_group = Durations()
        self.by_user = Durations()
        self.by_gpus = Votes()
        self._runs: OrderedDict[tuple[JobId, int], Past] = OrderedDict()
        self._profiles: OrderedDict[str, Profile] = OrderedDict()
        self._steps: OrderedDict[str, tuple[StepTime, ...]] = OrderedDict()
        self._stages: OrderedDict[str, tuple[StageTimes, ...]] = OrderedDict()
        self._bins: OrderedDict[int, list[int]] = OrderedDict()  # jobs, GPUs
        for run in runs:
            self.remember(run)
        for each in submissions:
            self.note_submission(*each)

    @property
    def runs(self) -> Iterable[Past]:
        """The latest runs, the newest last."""
        return self._runs.values()

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """Those of the last days, as one for each ten minutes."""
        return tuple(Submission(n * BIN_S, gpus, jobs) for n, (jobs, gpus) in self._bins.items())

    def remember(self, run: Past) -> None:
        """Idempotent: after a failed commit the core gets the same events again."""
        key = run.job, run.attempt
        if key in self._runs:
            return
        self._runs[key] = run
        if len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        self.by_group.add(run.group, run.duration_s)
        self.by_user.add(run.owner, run.duration_s)
        self.by_gpus.add(run.gpus, run.owner, run.duration_s)
        self._learn(run.job, run)

    def learn(self, job: Job) -> None:
        """Learn from a job that is still running."""
        self._learn(job.id, job)

    def profile(self, group: str) -> Profile | None:
        """The latest profile of a run of the job."""
        return self._profiles.get(group)

    def steps(self, group: str) -> tuple[StepTime, ...]:
        """Step times reported, or inherited, by the latest run of the job."""
        return self._steps.get(group, ())

    def stage_times(self, group: str) -> tuple[StageTimes, ...]:
        """Stage times reported, or inherited, by the latest run of the job."""
        return self._stages.get(group, ())

    def note_submission(self, at: float, gpus: int, jobs: int = 1) -> None:
        """`gpus`: of all these jobs."""
        number = int(at // BIN_S)
        counts = self._bins.setdefault(number, [0, 0])
        counts[0] += jobs
        counts[1] += gpus
        while len(self._bins) > BINS:
            self._bins.popitem(last=False)

    def _learn(self, id: JobId, seen: Job | Past) -> None:
        profile, group = seen.profile, seen.group
        if profile and profile.seconds and profile.of is None:
            _keep(self._profiles, group, replace(profile, of=id))
        if seen.steps:
            _keep(self._steps, group, seen.steps)
        if seen.stage_times:
            _keep(self._stages, group, seen.stage_times)

    def traffic(self, now: float) -> Sequence[tuple[int, int]]:
        """Jobs and GPUs requested in each ten minutes, from the first known one, or `BINS` ago, to
        the last that is over by `now`."""
        last = int(now // BIN_S) - 1
        if not self._bins:
            return ()
        first = max(next(iter(self._bins)), last - BINS + 1)
        nothing = (0, 0)
        bins: Mapping[int, Sequence[int]] = self._bins
        return [(c[0], c[1]) for n in range(first, last + 1) for c in (bins.get(n, nothing),)]


def _keep(latest: OrderedDict[K, T], key: K, value: T, most: int = KINDS) -> None:
    """Store the value; beyond `most` keys, drop the oldest."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > most:
        latest.popitem(last=False)
