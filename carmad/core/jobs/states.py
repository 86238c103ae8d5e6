"""The states of a job, and the table of transitions: `advance` alone changes a state."""

from __future__ import annotations

from enum import StrEnum

from carmad import states


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
    S.STOPPING: frozenset({*NEW, S.CANCELLED, S.TIMED_OUT, S.SUCCEEDED, S.FAILED}),
    # Only a user's requeue brings a job back; it is PENDING while it has no estimate.
    **dict.fromkeys(ENDED, NEW),
}
