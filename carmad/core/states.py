"""The job state machine: one table, one function, nothing else changes a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carmad.core.types import ENDED, NEW, Cause, Job, JobState

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
    S.STOPPING: frozenset({*NEW, S.CANCELLED, S.TIMED_OUT, S.SUCCEEDED, S.FAILED}),
    # Only a user's requeue brings a job back; it is PENDING while it has no estimate.
    **dict.fromkeys(ENDED, NEW),
}


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
