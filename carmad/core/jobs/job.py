"""A job. All values are frozen, so sharing one is always safe."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any

from carmad.core.jobs.attempt import (
    NO_ATTEMPT,
    Attempt,
    Cause,
    EndedAttempt,
    Exit,
    GpuId,
    JobId,
    Mode,
    ProfilingRun,
    Suspension,
    with_room,
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
from carmad.core.jobs.states import (
    HOLDING,
    LEAVING,
    LIVING,
    TRANSITIONS,
    WAITING,
    Active,
    EndState,
    JobState,
    NewState,
    Over,
    Paused,
    Status,
    Stopping,
    Waiting,
)


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
    # The metadata tells pydantic, which the core does not know, how to choose the shape.
    status: Status = field(metadata={"discriminator": "state"})
    submitted_at: float
    held: bool = False
    barred: str = ""  # why nothing may be done as its user: it is held until there is no reason
    group: str = ""  # the same for runs of the same job: see `carmad.core.jobs.recurrence`
    estimate: Estimate | None = None
    estimate_late: bool = False  # it started first, or its script took too long: one may follow
    prediction: Prediction | None = None
    profile: Profile | None = None
    steps: tuple[StepTime, ...] = ()  # reported by it or an earlier run; per `parts`, `gpu`
    stage_times: tuple[StageTimes, ...] = ()  # likewise, or declared; one per kind of GPU
    company: tuple[Company, ...] = ()  # how much others slowed it, as it reported
    earlier: tuple[EndedAttempt, ...] = ()  # attempts, in order; `attempt.KEPT` at most
    requeued_after: int = 0  # the last attempt before its owner last requeued it
    retry: Retry | None = None
    overtaken: int = 0  # jobs behind it that started first
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
        return self.status.state in HOLDING

    @property
    def lives(self) -> bool:
        """Whether an attempt is in progress: it holds GPUs, or is suspended."""
        return self.status.state in LIVING

    @property
    def ended(self) -> bool:
        return self.status.exit is not None

    def with_attempt(self, **changes: Any) -> Job:
        """The job with these fields of the attempt in progress changed."""
        assert isinstance(self.status, Active | Paused | Stopping)
        changed = replace(self.status.attempt, **changes)
        return replace(self, status=replace(self.status, attempt=changed))

    def with_suspension(self, new: Suspension) -> Job:
        """The job, which is suspended or on its way there or back, with another suspension."""
        assert isinstance(self.status, Paused | Stopping)
        return replace(self, status=replace(self.status, suspension=new))

    def with_note(self, note: str) -> Job:
        """The job with a note for its owner; the same object if it has that note already."""
        return self if note in self.notes else replace(self, notes=(*self.notes, note))

    def shift(self, by_s: float) -> Job:
        """With all recorded times but that of its end moved `by_s` later. Times that its owner
        gave, such as the begin time, are wall-clock times and stay."""
        return replace(
            self,
            submitted_at=self.submitted_at + by_s,
            status=_shift(self.status, by_s),
            earlier=tuple(each.shift(by_s) for each in self.earlier),
        )

    def run_s(self, now: float) -> float:
        """How long its current attempt has run, or ran, while it was not suspended."""
        gone, ended_at = self.status.suspension, self.status.ended_at
        until = min(now, gone.at) if gone else now
        return self.current.run_s(until if ended_at is None else ended_at)

    def attained_s(self, now: float) -> float:
        """How long it has run so far, in preempted attempts and in the one in progress."""
        return self.served_s + (self.run_s(now) if self.lives else 0.0)

    @property
    def due_at(self) -> float:
        """When it reaches its time limit. Infinite: never, as things are: it is suspended, or its
        attempt is yet to begin."""
        its, limit_s = self.current, self.spec.enforced_limit_s
        if its.started_at is None or limit_s is None or self.suspension or not self.lives:
            return math.inf
        return its.started_at + its.suspended_s + limit_s - its.served_s

    # -- of its state. `current` is inlined, since policies ask for it very often

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def current(self) -> Attempt:
        """The attempt in progress, or the one that the job ended with; else `NO_ATTEMPT`."""
        return self.status.attempt or NO_ATTEMPT

    @property
    def suspension(self) -> Suspension | None:
        """The present one."""
        return self.status.suspension

    @property
    def stop(self) -> Cause | None:
        """Why it is being, or was, stopped."""
        return self.status.stop

    @property
    def exit(self) -> Exit | None:
        """How it ended: as its last attempt did, or while it waited."""
        return self.status.exit

    @property
    def ended_at(self) -> float | None:
        return self.status.ended_at

    @property
    def leaves(self) -> bool:
        """Whether it is about to give its GPUs back."""
        return self.status.state in LEAVING

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        return (self.status.attempt or NO_ATTEMPT).gpus

    @property
    def mode(self) -> Mode | None:
        return (self.status.attempt or NO_ATTEMPT).mode

    @property
    def started_at(self) -> float | None:
        """None: it waits, is yet to begin, or ended before it began."""
        return (self.status.attempt or NO_ATTEMPT).started_at

    @property
    def kernels(self) -> tuple[tuple[GpuId, float], ...]:
        """When its first kernel was seen, per GPU."""
        return (self.status.attempt or NO_ATTEMPT).kernels

    @property
    def accumulation(self) -> int:
        """Micro-batches per batch."""
        return (self.status.attempt or NO_ATTEMPT).accumulation

    @property
    def profiling(self) -> ProfilingRun | None:
        """The current profiling run, if any."""
        return (self.status.attempt or NO_ATTEMPT).profiling

    @property
    def shared(self) -> bool:
        """Whether another job was on one of its GPUs."""
        return (self.status.attempt or NO_ATTEMPT).shared

    # -- of its attempts

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All on record, in order."""
        return (*self.earlier, its) if (its := self.status.attempt) else self.earlier

    @property
    def ended_attempts(self) -> tuple[EndedAttempt, ...]:
        """Those of them that are over."""
        its = self.status.attempt
        return (*self.earlier, its) if isinstance(its, EndedAttempt) else self.earlier

    def new_attempt(self, gpus: tuple[GpuId, ...], now: float, **its: Any) -> Attempt:
        """The next one, on these GPUs; `its` are further fields of it."""
        return Attempt(self.attempt + 1, gpus, started_at=now, served_s=self.served_s, **its)

    @property
    def attempt(self) -> int:
        """The number of its last attempt; 0 before the first."""
        if its := self.status.attempt:
            return its.number
        return self.earlier[-1].number if self.earlier else 0

    @property
    def failures(self) -> tuple[Exit, ...]:
        """How the attempts that were retried ended, since its owner last queued it."""
        return tuple(
            each.exit
            for each in self.earlier
            if each.stop in (None, Cause.GPU_OOM) and each.number > self.requeued_after
        )

    @property
    def served_s(self) -> float:
        """The total run time of preempted attempts, since its owner last queued it."""
        if its := self.status.attempt:
            return its.served_s
        last = self.earlier[-1] if self.earlier else None
        if last is None or last.number <= self.requeued_after:
            return 0.0
        if last.stop is Cause.PREEMPTED:
            return max(0.0, last.served_s + last.run_s(last.ended_at))
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


def advance(job: Job, to: Status, **changes: Any) -> Job:
    """`job` in the state `to`, with other fields changed alongside. Raises IllegalTransition."""
    if to.state not in TRANSITIONS[job.status.state]:
        raise IllegalTransition(job, to.state)
    return replace(job, status=to, **changes)


def start(job: Job, attempt: Attempt, **changes: Any) -> Job:
    to = Active(JobState.STARTING, attempt)
    return advance(job, to, earlier=with_room(job.earlier), **changes)


def running(job: Job) -> Job:
    """The job, whose first kernel was seen."""
    return advance(job, Active(JobState.RUNNING, job.current))


def stopping(job: Job, cause: Cause) -> Job:
    """The job, asked to stop. One that is already stopping only takes the new cause."""
    to = Stopping(job.current, cause, job.suspension)
    return replace(job, status=to) if job.state is JobState.STOPPING else advance(job, to)


def requeue(job: Job, state: NewState, exit: Exit, at: float, **changes: Any) -> Job:
    """The job in the queue again, as its attempt is over."""
    earlier = (*job.earlier, _last_attempt(job, exit, at))
    return advance(job, Waiting(state), earlier=earlier, **changes)


def over(job: Job, state: EndState, exit: Exit, at: float) -> Job:
    """The job at its end, with its attempt if one was in progress."""
    its = _last_attempt(job, exit, at) if job.lives else None
    return advance(job, Over(state, exit, at, its))


def _last_attempt(job: Job, exit: Exit, at: float) -> EndedAttempt:
    """The attempt in progress, which is over."""
    its, gone = job.current, job.suspension
    if gone:
        its = replace(its.resumed(gone, at), gpus=its.gpus or gone.gpus)
    return replace(its, profiling=None).ended(exit, at, job.stop)


def _shift(status: Status, by_s: float) -> Status:
    if isinstance(status, Waiting | Over):
        return status
    moved = replace(status, attempt=status.attempt.shift(by_s))
    if isinstance(moved, Active) or not moved.suspension:
        return moved
    return replace(moved, suspension=moved.suspension.shift(by_s))
