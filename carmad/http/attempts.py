"""The attempts of a job that has ended: where each ran, from when to when, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from carmad.api.responses import AttemptOut
from carmad.api.times import iso, stamp
from carmad.core.decision import Decision
from carmad.core.types import Cause, Exit, Job, JobState
from carmad.store.sql import SqlStore
from carmad.store.values import Transition

MOST_DECISIONS = 1000

_CAUSES = {
    JobState.SUCCEEDED: Cause.SUCCESS,
    JobState.CANCELLED: Cause.CANCELLED,
    JobState.TIMED_OUT: Cause.TIME_LIMIT,
    JobState.OUT_OF_MEMORY: Cause.GPU_OOM,
}


def attempts_out(job: Job, store: SqlStore) -> list[AttemptOut]:
    """In order. Most jobs had only one attempt, which is in the job itself."""
    if not job.attempt:
        return []
    if job.attempt == 1 and job.gpus:
        return [_last(job)]
    placed = [d for d in store.decisions(job.id, MOST_DECISIONS) if d.placement.gpus]
    found = _told(store.transitions(job.id), placed, job.failures)
    return [*found[:-1], _last(job)] if job.gpus else found


def _last(job: Job) -> AttemptOut:
    assert job.started_at is not None and job.ended_at is not None and job.exit is not None
    return {
        "gpus": list(job.gpus),
        "mode": job.mode.value if job.mode else None,
        "started_at": stamp(job.started_at),
        "first_kernel_at": iso(min((at for _, at in job.kernels), default=None)),
        "ended_at": stamp(job.ended_at),
        "cause": job.exit.cause.value,
    }


def _told(
    moves: Sequence[Transition], placed: Sequence[Decision], failures: Sequence[Exit]
) -> list[AttemptOut]:
    """Reconstructed from the job's changes of state and the decisions (newest first). The mode is
    not on record. `failures` are of the latest attempts that crashed and were retried."""
    found: list[AttemptOut] = []
    crashed: list[AttemptOut] = []
    started: float | None = None
    kernel: float | None = None
    for move in moves:
        if move.after is JobState.STARTING:
            started, kernel = move.at, None
        elif move.after is JobState.RUNNING:
            kernel = move.at
        elif started is not None and move.after is not JobState.STOPPING:
            gpus = next((d.placement.gpus for d in placed if d.at <= started), ())
            attempt: AttemptOut = {
                "gpus": list(gpus),
                "mode": None,
                "started_at": stamp(started),
                "first_kernel_at": iso(kernel),
                "ended_at": stamp(move.at),
                "cause": _cause(move).value,
            }
            found.append(attempt)
            if move.after is JobState.QUEUED and move.before is not JobState.STOPPING:
                crashed.append(attempt)
            started = None
    for attempt, exit in zip(reversed(crashed), reversed(failures), strict=False):
        attempt["cause"] = exit.cause.value
    return found


def _cause(move: Transition) -> Cause:
    """The cause of an attempt's end, as far as the change of state reveals it."""
    if move.after is JobState.QUEUED:
        return Cause.PREEMPTED if move.before is JobState.STOPPING else Cause.GPU_OOM
    return _CAUSES.get(move.after, Cause.FAILURE)
