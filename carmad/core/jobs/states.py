"""The states of a job, what a job in each of them has, and the table of transitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from carmad import states
from carmad.core.jobs.attempt import Attempt, Cause, EndedAttempt, Exit, Suspension


class JobState(StrEnum):
    PENDING = "pending"  # waiting; its memory need is not known yet: only idle GPUs can take it
    QUEUED = "queued"  # waiting for GPUs
    STARTING = "starting"  # handed to the launcher; no kernel seen yet
    RUNNING = "running"  # its first kernel was seen
    SUSPENDING = "suspending"  # its GPU memory is on its way to the host's
    SUSPENDED = "suspended"  # it is there; waiting for GPUs, its processes alive
    RESUMING = "resuming"  # on its way back
    STOPPING = "stopping"  # told to stop; keeps its GPUs until its processes are gone
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"


NEW = frozenset(map(JobState, states.NEW))
WAITING = NEW | {JobState.SUSPENDED}
HOLDING = frozenset(
    {
        JobState.STARTING,
        JobState.RUNNING,
        JobState.SUSPENDING,
        JobState.RESUMING,
        JobState.STOPPING,
    }
)
LIVING = HOLDING | {JobState.SUSPENDED}  # an attempt is in progress
LEAVING = frozenset({JobState.SUSPENDING, JobState.STOPPING})
ENDED = frozenset(map(JobState, states.ENDED))

S = JobState

# An attempt may end by itself at any time, or be told to.
OVER = frozenset({*NEW, S.STOPPING, S.SUCCEEDED, S.FAILED, S.OUT_OF_MEMORY})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    S.PENDING: frozenset({S.QUEUED, S.STARTING, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.CANCELLED, S.PENDING}),  # it is estimated anew
    S.STARTING: frozenset({S.RUNNING, *OVER}),
    S.RUNNING: frozenset({S.SUSPENDING, *OVER}),
    # It may fail, and then the job is where it was.
    S.SUSPENDING: frozenset({S.SUSPENDED, S.RUNNING, *OVER}),
    S.SUSPENDED: frozenset({S.RESUMING, *OVER}),
    S.RESUMING: frozenset({S.RUNNING, S.SUSPENDED, *OVER}),
    # A preempted job is requeued, unless it had just finished; it fails if it could not be killed.
    S.STOPPING: NEW | ENDED,
    # Only a user's requeue brings a job back; it is PENDING while it has no estimate.
    **dict.fromkeys(ENDED, NEW),
}

NewState = Literal[S.PENDING, S.QUEUED]
EndState = Literal[S.SUCCEEDED, S.FAILED, S.CANCELLED, S.TIMED_OUT, S.OUT_OF_MEMORY]

# -- what a job has in its state


class _State:
    """What a job lacks in its state is None, so that it can be asked for in every state."""

    __slots__ = ()
    attempt: Attempt | None = None
    suspension: Suspension | None = None
    exit: Exit | None = None
    ended_at: float | None = None

    @property
    def stop(self) -> Cause | None:
        return self.attempt.stop if isinstance(self.attempt, EndedAttempt) else None

    def __post_init__(self) -> None:
        its = self.attempt
        if its and (its.exit, its.ended_at) != (self.exit, self.ended_at):
            raise ValueError("the attempt of a job is over if, and as, the job is")


@dataclass(frozen=True, slots=True)
class Waiting(_State):
    """Its next attempt is yet to begin."""

    state: NewState


@dataclass(frozen=True, slots=True)
class Active(_State):
    state: Literal[S.STARTING, S.RUNNING]
    attempt: Attempt = field()


@dataclass(frozen=True, slots=True)
class Paused(_State):
    """Its attempt has no GPUs, or is on its way there or back."""

    state: Literal[S.SUSPENDING, S.SUSPENDED, S.RESUMING]
    attempt: Attempt = field()
    suspension: Suspension = field()


@dataclass(frozen=True, slots=True)
class Stopping(_State):
    attempt: Attempt = field()
    stop: Cause = field()
    suspension: Suspension | None = None  # it was paused
    state: Literal[S.STOPPING] = S.STOPPING


@dataclass(frozen=True, slots=True)
class Over(_State):
    state: EndState
    exit: Exit = field()  # that of its attempt
    ended_at: float = field()
    attempt: EndedAttempt | None = None  # None: it ended while it waited


Status = Waiting | Active | Paused | Stopping | Over
