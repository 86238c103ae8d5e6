"""A job. All values are frozen, so sharing one is always safe."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from carmad.core.jobs.attempt import (
    Attempt,
    Cause,
    Exit,
    GpuId,
    JobId,
    MemoryLimits,
    Mode,
    ProfilingRun,
    Suspension,
    append,
)
from carmad.core.jobs.findings import (
    Company,
    Estimate,
    Prediction,
    Profile,
    StageTimes,
    StepTime,
    Usage,
)
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import ENDED, HOLDING, LEAVING, TRANSITIONS, WAITING, JobState


@dataclass(frozen=True, slots=True)
class Retry:
    """Constraints on a job's next attempt. A job with a `Retry` waits in the recovery queue."""

    why: str
    exclusive: bool = False
    avoid: tuple[GpuId, ...] = ()
    margin_mib: int = 0  # free memory required on top of the estimate

    def placeable(self, gpus: int, usable: Set[GpuId]) -> Retry:
        """Exclusive instead if `avoid` leaves a job of so many GPUs too few of the `usable` ones;
        unchanged while no GPU is known."""
        if usable and len(usable - set(self.avoid)) < gpus:
            return replace(self, avoid=(), exclusive=True)
        return self


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    held: bool = False
    barred: str = ""  # why nothing may be done as its user: it is held until there is no reason
    group: str = ""  # the same for runs of the same job: see `carmad.core.jobs.recurrence`
    estimate: Estimate | None = None
    estimate_late: bool = False  # it started first, or its script took too long: one may follow
    doubted: bool = False  # its owner's word on memory: see `core.rules.promises`
    prediction: Prediction | None = None
    profile: Profile | None = None
    steps: tuple[StepTime, ...] = ()  # reported by it or an earlier run; per `parts`, `gpu`
    stage_times: tuple[StageTimes, ...] = ()  # likewise, or declared; one per kind of GPU
    company: tuple[Company, ...] = ()  # how much others slowed it, as it reported
    attempts: tuple[Attempt, ...] = ()  # in order; `attempt.KEPT` at most
    requeued_after: int = 0  # the last attempt before its owner last requeued it
    retry: Retry | None = None
    overtaken: int = 0  # jobs behind it that started first
    exit: Exit | None = None  # how it ended: as its last attempt did, or while it waited
    ended_at: float | None = None
    notes: tuple[str, ...] = ()  # what its owner should know: outside MPS, never used its GPU
    metrics: tuple[tuple[str, float], ...] = ()  # that it reported, by name: the last values
    crash: str = ""  # how its script failed when it was tried: see `Refusal`
    unsuspendable: str = ""  # why suspending it failed; it is not tried again
    usage: Usage = Usage()  # noqa: RUF009 - it is frozen

    @property
    def ids(self) -> range:
        """Several if it stands for tasks of an array that wait alike: see `core.jobs.tasks`."""
        return range(self.id, self.id + self.tasks)

    @property
    def tasks(self) -> int:
        return self.spec.tasks

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def awaits_estimate(self) -> bool:
        """Whether its memory is still being estimated."""
        return self.state is JobState.PENDING or (self.estimate_late and not self.ended)

    @property
    def holds_gpus(self) -> bool:
        return self.state in HOLDING

    @property
    def lives(self) -> bool:
        """Whether an attempt is in progress: it holds GPUs, or is suspended."""
        return self.state in HOLDING or self.state is JobState.SUSPENDED

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def current(self) -> Attempt | None:
        """The attempt in progress, or the one that the job ended with; None while it waits."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and (last.exit is None or self._is_final(last)) else None

    def _is_final(self, last: Attempt) -> bool:
        """Whether the job ended with this attempt, which is over. Only a cancelled job may have
        ended while it waited; its last attempt then was not cancelled, unless its owner requeued
        the job after that."""
        if self.state is JobState.CANCELLED:
            return last.stop is Cause.CANCELLED and last.number > self.requeued_after
        return self.state in ENDED

    def with_new_attempt(self, gpus: tuple[GpuId, ...], now: float, **its: Any) -> Job:
        """The job with a new attempt on these GPUs; `its` are further fields of the attempt."""
        number, served_s = self.attempt + 1, self.served_s
        new = Attempt(number, gpus, started_at=now, served_s=served_s, **its)
        return replace(self, attempts=append(self.attempts, new))

    def with_attempt(self, **changes: Any) -> Job:
        """The job with these fields of its last attempt changed."""
        *earlier, last = self.attempts
        return replace(self, attempts=(*earlier, replace(last, **changes)))

    def with_note(self, note: str) -> Job:
        """The job with a note for its owner; the same object if it has that note already."""
        return self if note in self.notes else replace(self, notes=(*self.notes, note))

    def shift(self, by_s: float) -> Job:
        """With all recorded times moved `by_s` later. Times that its owner gave, such as the begin
        time, are wall-clock times and stay."""
        return replace(
            self,
            submitted_at=self.submitted_at + by_s,
            attempts=tuple(each.shift(by_s) for each in self.attempts),
        )

    def attained_s(self, now: float) -> float:
        """How long it has run so far, in preempted attempts and in this one."""
        running = self.current if self.lives else None
        return running.attained_s(now) if running else self.served_s

    @property
    def due_at(self) -> float:
        """When it reaches its time limit. Infinite: it does not, as things are."""
        limit_s = self.spec.enforced_limit_s
        running = self.current if self.lives else None
        return math.inf if limit_s is None or running is None else running.due_at(limit_s)

    # -- of the current attempt

    @property
    def attempt(self) -> int:
        """The number of its last attempt; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        # `current`, inlined here and below: policies ask very often
        its = self.attempts[-1] if self.attempts else None
        return its.gpus if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def mode(self) -> Mode | None:
        return its.mode if (its := self.current) else None

    @property
    def started_at(self) -> float | None:
        """None: it waits, is yet to begin, or ended before it began."""
        its = self.attempts[-1] if self.attempts else None
        return its.started_at if its and (its.exit is None or self._is_final(its)) else None

    @property
    def kernels(self) -> tuple[tuple[GpuId, float], ...]:
        """When its first kernel was seen, per GPU."""
        its = self.attempts[-1] if self.attempts else None
        return its.kernels if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def accumulation(self) -> int:
        """Micro-batches per batch."""
        return its.accumulation if (its := self.current) else 1

    @property
    def profiling(self) -> ProfilingRun | None:
        """The current profiling run, if any."""
        its = self.attempts[-1] if self.attempts else None
        return its.profiling if its and (its.exit is None or self._is_final(its)) else None

    @property
    def shared(self) -> bool:
        """Whether another job was on one of its GPUs."""
        return self.current is not None and self.current.shared

    @property
    def filler(self) -> bool:
        """Whether it started before its turn, and leaves when those before it can start."""
        its = self.attempts[-1] if self.attempts else None
        return its is not None and its.exit is None and its.filler

    @property
    def memory_limits(self) -> tuple[MemoryLimits, ...]:
        its = self.attempts[-1] if self.attempts else None
        return its.memory_limits if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def warned(self) -> bool:
        return self.current is not None and self.current.warned

    @property
    def nearing(self) -> bool:
        return self.current is not None and self.current.nearing

    @property
    def idle(self) -> bool:
        return self.current is not None and self.current.idle

    @property
    def suspension(self) -> Suspension | None:
        """The present one."""
        its = self.attempts[-1] if self.attempts else None
        return its.suspension if its and its.exit is None else None

    @property
    def suspended_s(self) -> float:
        """For how long it was suspended earlier."""
        return its.suspended_s if (its := self.current) else 0.0

    @property
    def leaves(self) -> bool:
        """Whether it is about to give its GPUs back."""
        return self.state in LEAVING

    @property
    def stop(self) -> Cause | None:
        """Why it is being, or was, stopped."""
        return its.stop if (its := self.current) else None

    # -- of earlier attempts, since its owner last queued it

    @property
    def failures(self) -> tuple[Exit, ...]:
        """How the attempts that were retried ended."""
        earlier = self.attempts[:-1] if self.current else self.attempts
        return tuple(
            each.exit
            for each in earlier
            if each.exit and each.stop is None and each.number > self.requeued_after
        )

    @property
    def served_s(self) -> float:
        """The total run time of preempted attempts."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.number <= self.requeued_after:
            return 0.0
        if last.stop is Cause.PREEMPTED and last is not self.current:
            return max(0.0, last.attained_s(math.inf))
        return last.served_s

    @property
    def profiled(self) -> bool:
        """False also if its profiling run ended before its first kernel."""
        return self.profile is not None and self.profile.seconds > 0

    @property
    def expected_s(self) -> float | None:
        """How long it runs alone: as predicted, or else as declared. None if neither is known; a
        prediction of 0 means that the predictor has never seen the job."""
        if self.prediction is None:
            return self.spec.expected_s
        return self.prediction.seconds or None

    @property
    def own_s(self) -> float | None:
        """The same, unless only other jobs say so."""
        return None if self.prediction and self.prediction.is_guess else self.expected_s

    def at_most_s(self, now: float) -> float:
        """How much longer it runs at most: until its time limit, or as long as nine of ten earlier
        runs of it, or as declared. Infinite: nobody knows, or it has outlived that already."""
        done_s = self.attained_s(now)
        predicted = self.prediction.at_most_s if self.prediction else None
        longest_s = self.spec.expected_s if predicted is None else predicted
        left_s = math.inf if longest_s is None or longest_s <= done_s else longest_s - done_s
        limit_s = self.spec.time_limit_s
        return left_s if limit_s is None else min(left_s, max(0.0, limit_s - done_s))

    @property
    def need(self) -> Estimate | None:
        """The estimate, at the present number of micro-batches."""
        return self.estimate and self.estimate.accumulating(self.accumulation)

    @property
    def limit_mib(self) -> int | None:
        """What each of its processes may allocate on a GPU, in MiB; None: no limit.

        MPS enforces it. Only declared memory is a limit: an estimate that is too low would crash
        a job that has room.
        """
        if self.mode is not Mode.MPS or self.need is None or self.need.source != "declared":
            return None
        return self.need.safe_mib + (self.retry.margin_mib if self.retry else 0)

    @property
    def exclusive(self) -> bool:
        return self.spec.exclusive or (self.retry is not None and self.retry.exclusive)


class IllegalTransition(Exception):
    """A job was asked to make a transition that is not in the table."""

    def __init__(self, job: Job, to: JobState) -> None:
        super().__init__(f"job {job.id} cannot go from {job.state} to {to}")


def advance(job: Job, to: JobState, **changes: Any) -> Job:
    """`job` in state `to`, with other fields changed alongside. Raises IllegalTransition."""
    if to not in TRANSITIONS[job.state]:
        raise IllegalTransition(job, to)
    return replace(job, state=to, **changes)


def stopping(job: Job, cause: Cause) -> Job:
    """The job, asked to stop. One that is already stopping only takes the new cause."""
    new = job.with_attempt(stop=cause)
    return new if job.state is JobState.STOPPING else advance(new, JobState.STOPPING)
