"""Counters and histograms, since the daemon started: counted as steps are committed."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from carmad.core.happenings import Happening, Kind
from carmad.core.messages import Event, Step
from carmad.core.types import ENDED, Cause, Gpu, GpuId, Job, JobState
from carmad.loop import Follower
from carmad.metrics import declared
from carmad.metrics.declared import Metric

Labels = tuple[str, ...]

CAUSES = tuple(cause for cause in Cause if cause is not Cause.DEPENDENCY)  # ends of attempts
RETRIED, GIVEN_UP = "retried", "given_up"
MOST_ESTIMATORS = 16  # with labels of their own: a plugin's author may name its answers at will
OTHER = "other"


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many were at most each bound, and how many there were at all."""
        return list(accumulate(self._counts))


class Counts(Follower):
    """Told of jobs by what happens to them (`heard`), and of the rest as a follower."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[Metric, dict[Labels, float]] = {
            declared.STEPS_FAILED: {(): 0},
            declared.SUBMITTED: {(): 0},
            declared.RECOVERED: {(): 0},
            declared.ENDED: {(state.value,): 0 for state in JobState if state in ENDED},
            declared.ATTEMPTS: {(cause.value,): 0 for cause in CAUSES},
            declared.OOMS: {(RETRIED,): 0, (GIVEN_UP,): 0},
        }
        self._step_s = Histogram(declared.STEP_S.buckets)
        self._commit_s = Histogram(declared.COMMIT_S.buckets)
        self._wait_s = Histogram(declared.WAIT_S.buckets)
        self._ratios: defaultdict[str, Histogram] = defaultdict(
            lambda: Histogram(declared.ESTIMATE.buckets)
        )
        self._under_way = False  # a step that is not committed yet

    # -- in the core's thread

    def hear(self, events: Sequence[Event]) -> None:
        self._under_way = True

    def took(self, step: Step, core_s: float, commit_s: float) -> None:
        self._under_way = False
        with self._lock:
            self._step_s.observe(core_s)
            if step.to_write:
                self._commit_s.observe(commit_s)

    def restored(self) -> None:
        if self._under_way:
            self._under_way = False
            with self._lock:
                self._count(declared.STEPS_FAILED)

    def heard(self, happened: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        with self._lock:
            for each in happened:
                if each.job is not None:
                    self._note(each.kind, each.job, each)

    def _note(self, kind: Kind, job: Job, happening: Happening) -> None:
        match kind:
            case Kind.SUBMITTED:
                self._count(declared.SUBMITTED, by=happening.count)
            case Kind.STARTED if job.attempt == 1 and job.started_at is not None:
                self._wait_s.observe(max(0.0, job.started_at - job.submitted_at))
            case Kind.RETRIED | Kind.REQUEUED if happening.cause:  # none: its owner requeued it
                self._attempt(happening.cause, RETRIED)
            case Kind.ENDED:
                self._count(declared.ENDED, job.state.value, by=happening.count)
                if job.current and job.exit:
                    self._attempt(job.exit.cause, GIVEN_UP)
                if job.state is JobState.SUCCEEDED:
                    self._succeeded(job)

    def _attempt(self, cause: Cause, then: str) -> None:
        self._count(declared.ATTEMPTS, cause.value)
        if cause is Cause.GPU_OOM:
            self._count(declared.OOMS, then)

    def _succeeded(self, job: Job) -> None:
        if any(failure.cause is Cause.GPU_OOM for failure in job.failures):
            self._count(declared.RECOVERED)
        if job.need is None or not job.usage.peak_mib:
            return
        for estimate in {each.source: each for each in (*job.need.others, job.need)}.values():
            source = estimate.source
            if source not in self._ratios and len(self._ratios) >= MOST_ESTIMATORS:
                source = OTHER
            self._ratios[source].observe(estimate.mib / job.usage.peak_mib)

    def _count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        self._counters[metric][labels] += by

    # -- in any thread

    def counters(self) -> list[tuple[Metric, Labels, float]]:
        with self._lock:
            return [
                (metric, labels, value)
                for metric, by_labels in self._counters.items()
                for labels, value in by_labels.items()
            ]

    def histograms(self) -> list[tuple[Metric, Labels, list[int], float]]:
        """With the cumulative numbers by bucket, and the sum."""
        with self._lock:
            found = [
                (declared.STEP_S, (), self._step_s),
                (declared.COMMIT_S, (), self._commit_s),
                (declared.WAIT_S, (), self._wait_s),
                *((declared.ESTIMATE, (name,), its) for name, its in self._ratios.items()),
            ]
            return [(metric, labels, its.cumulative(), its.sum) for metric, labels, its in found]
